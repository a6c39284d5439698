"""Gradients through K steps: to learning rates, clip thresholds, decays and scales, also across vetoed NaN steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from functrain import EMA, Accumulate, ClipNorm, ClipZScore, SkipNonFinite, TrainState, pure
from tests.pure.test_traced import loss_fn, start

HOOKS = (Accumulate(every=2), ClipNorm(max_norm=0.2), SkipNonFinite(drop=False), EMA(decay=0.5))
DIALS = {
    "lr": lambda state, x: state.replace(opt=state.opt | {"main": state.opt["main"] | {"lr": x}}),
    "max_norm": lambda state, x: state.with_slot("clip", state.hooks["clip"] | {"max_norm": x}),
    "decay": lambda state, x: state.with_slot("ema", state.hooks["ema"] | {"decay": x}),
}
VALUES = {"lr": 0.3, "max_norm": 0.2, "decay": 0.5}
OPTIMIZERS = {
    "sgd": lambda: pure.sgd(0.3, momentum=0.9),
    "adam": lambda: pure.adam(0.3, eps=1e-3),
    "adamw": lambda: pure.adamw(0.3, eps=1e-3, weight_decay=0.1),
}


def batches(*, broken: bool) -> list[Tensor]:
    """Return eight batches in float64, one of them NaN where asked."""
    generator = torch.Generator().manual_seed(3)
    found = [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(8)]
    return [batch * float("nan") if broken and place == 3 else batch for place, batch in enumerate(found)]


def outcome(dial: str, optimizer: str, hooks: Any, *, broken: bool) -> Callable[[Tensor], Tensor]:
    """Return a number at the end of a run as a function of one hyper-parameter."""
    init, step, _ = pure.train_step(loss_fn, OPTIMIZERS[optimizer](), hooks, differentiable=True)

    def run(x: Tensor) -> Tensor:
        state: TrainState = DIALS[dial](init(start(torch.float64)), x)
        for batch in batches(broken=broken):
            state = step(state, batch)
        shadow = state.hooks["ema"]["shadow"]
        return sum((leaf**3).sum() for tree in (state.params["main"], shadow) for leaf in tree.values())

    return run


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dial", DIALS)
def test_gradients_equal_finite_differences(dial: str, optimizer: str, broken: bool) -> None:
    """Through eight steps in windows of two, clipped and averaged, one of them vetoed or none: to 1e-6 in float64."""
    run = outcome(dial, optimizer, HOOKS, broken=broken)
    x, h = torch.tensor(VALUES[dial], dtype=torch.float64), 1e-6
    found = torch.func.grad(run)(x)
    expected = (run(x + h) - run(x - h)) / (2 * h)
    assert found.isfinite()
    assert abs(found) > 1e-8
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_a_learned_limit_passes_gradients() -> None:
    """Statistics of earlier norms are constants: a z-score limit leaves the gradient to the learning rate finite."""
    run = outcome("lr", "sgd", (ClipZScore(warmup=2), SkipNonFinite(), EMA(decay=0.5)), broken=True)
    assert torch.func.grad(run)(torch.tensor(0.3, dtype=torch.float64)).isfinite()


def test_backward_of_autograd_works_too() -> None:
    """Without torch.func: a leaf that requires a gradient gets one through the run."""
    x = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    run = outcome("lr", "sgd", HOOKS, broken=True)
    run(x).backward()
    assert torch.equal(x.grad, torch.func.grad(run)(x.detach()))


def test_no_graph_grows_by_default() -> None:
    """Without differentiable=True nothing in a state carries a graph, whatever went in."""
    init, step, _ = pure.train_step(loss_fn, pure.sgd(0.1), HOOKS)
    weights = {name: leaf.requires_grad_() for name, leaf in start().items()}
    state = step(init(weights), torch.randn(4, 3))
    assert not any(leaf.requires_grad for leaf in state.params["main"].values())
    assert not state.loss.requires_grad
