"""The family in the pure engine: swept, compiled, and differentiated to the numbers of its rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from functrain import (
    EMA,
    SWA,
    Hook,
    InverseGammaWarmup,
    Lookahead,
    PowerEMA,
    SkipNonFinite,
    SwitchEMA,
    TensorFlowWarmup,
    YOLOWarmup,
    fold,
    pure,
)
from functrain.pure.dials import dialled
from functrain.testing.oracles import check_compiled, check_lanes

BATCHES = [torch.tensor([value], dtype=torch.float64) for value in (1.0, -0.5, float("nan"), 2.0, 0.25, -1.0)]
RULES: list[tuple[Hook, str]] = [
    (EMA(decay=0.9), "decay"),
    (EMA(decay=0.9, first="zero", finite_only=True), "decay"),
    (EMA(half_life=3.0, first="lerp"), "half_life"),
    (EMA(half_life=50.0, warmup=InverseGammaWarmup()), "half_life"),
    (EMA(decay=0.2, warmup=TensorFlowWarmup(), update_every=2), "decay"),
    (EMA(decay=0.9, warmup=YOLOWarmup(tau=2.0)), "decay"),
    (PowerEMA(relative_std=0.2, update_every=2), "gamma"),
    (SwitchEMA(switch_every=2, decay=0.7), "decay"),
    (Lookahead(update_every=2, alpha=0.6), "alpha"),
]


def trained(hook: Hook, name: str | None = None, value: Any = None) -> Any:
    """Return the average after a run with a broken batch in it; one number of the rule may be another."""
    init, step, _ = pure.train_step(loss, pure.sgd(0.1, momentum=0.5), [hook, SkipNonFinite()], differentiable=True)
    state = init({"w": torch.tensor([0.5, -2.0], dtype=torch.float64)})
    if name is not None:
        state = state.with_slot(hook.name, state.hooks[hook.name] | {name: value})
    for batch in BATCHES:
        state = step(state, batch)
    return state.hooks[hook.name]["shadow"]["w"].square().sum()


def loss(params: Any, _: Any, batch: Tensor) -> Tensor:
    """Return something that moves both weights, each in its own way."""
    return (params["w"] * batch - 1.0).square().sum() + params["w"].square().sum()


@pytest.mark.parametrize(("hook", "name"), RULES, ids=repr)
def test_gradients_to_the_numbers_of_a_rule(hook: Hook, name: str) -> None:
    """Beside central differences, across a vetoed NaN step, finite everywhere."""
    at = getattr(hook, name, None)
    at = torch.tensor(hook.numbers()[name] if at is None else at, dtype=torch.float64)
    found = torch.func.grad(lambda value: trained(hook, name, value))(at)
    near = 1e-6
    right = (trained(hook, name, at + near) - trained(hook, name, at - near)) / (2 * near)
    assert found.isfinite()
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("hook", "name"), RULES, ids=repr)
def test_lanes_of_a_sweep(hook: Hook, name: str) -> None:
    """Every number of a rule is a dial, in its bounds; each lane is the run that it would be alone."""
    values = [0.05, 0.15] if name != "half_life" else [0.5, 1.0]
    run = pure.train_step(loss, pure.sgd(0.1, momentum=0.5), [hook, SkipNonFinite()])
    first = run.init({"w": torch.tensor([0.5, -2.0], dtype=torch.float64)})
    pipeline = fold(hook, SkipNonFinite())
    lanes = [dialled(first, {f"hooks.{hook.name}.{name}": value}, pipeline) for value in values]
    check_lanes(run.step, lanes, BATCHES)
    alone = [trained(hook, name, torch.tensor(value, dtype=torch.float64)) for value in values]
    assert alone[0] != alone[1]


@pytest.mark.slow
def test_one_graph() -> None:
    """All of them at once, through vetoes and switches."""
    hooks = [hook.model_copy(update={"name": f"rule_{place}"}) for place, (hook, _) in enumerate(RULES)]
    init, step, _ = pure.train_step(loss, pure.sgd(0.1), [*hooks, SWA(), SkipNonFinite()])
    check_compiled(step, init({"w": torch.tensor([0.5, -2.0], dtype=torch.float64)}), BATCHES)
