"""Loss scaling beside torch's own GradScaler, and beside the same run in full precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD

from functrain import Accumulate, MixedPrecision, Shell, Stage
from tests.scalars import Weight, run, sgd_shell
from tests.scripted import STEP, half, vetoing

INF, NAN = float("inf"), float("nan")
COUNT = 12
WIDE = {"min_scale": 2.0**-40, "max_scale": 2.0**60}

rules = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([1.0, 1024.0, 1000.0, 2.0**16]),
        "growth_factor": st.sampled_from([2.0, 1.5, 1.1]),
        "backoff_factor": st.sampled_from([0.5, 0.3]),
        "growth_interval": st.integers(1, 4),
    }
)
slopes = st.lists(st.sampled_from([1.0, 2.0, -3.0, INF, NAN]), min_size=1, max_size=COUNT)
batches = st.frozensets(st.integers(0, COUNT - 1))


def by_hand(scaler: torch.amp.GradScaler, losses: Sequence[float], vetoed: frozenset[int]) -> tuple[Any, list[float]]:
    """Train by the recipe of torch; a veto of finite gradients touches neither weight nor scaler."""
    model, scales = Weight(), []
    optimizer = SGD(model.parameters(), lr=1.0)
    for batch, slope in enumerate(losses):
        if batch not in vetoed or not torch.tensor(slope).isfinite():
            optimizer.zero_grad()
            scaler.scale(model(slope)).backward()
            scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
    return model.w.item(), scales


@given(rule=rules, losses=slopes, vetoed=batches, own=st.booleans())
def test_scale_and_weight_follow_torch(
    rule: dict[str, Any], losses: list[float], vetoed: frozenset[int], own: bool
) -> None:
    """Under any pattern of overflows and later vetoes: bitwise GradScaler's trajectory, in the user's scaler too."""
    weight, scales = by_hand(torch.amp.GradScaler("cpu", **rule), losses, vetoed)
    scaler = torch.amp.GradScaler("cpu", **rule) if own else None
    shell = sgd_shell(Weight(), half(**WIDE, **({} if own else rule)) + vetoing(vetoed), scaler=scaler)
    found = []
    for slope in losses:
        run(shell, [slope])
        found.append(shell.state.scaler["scale"])
        assert scaler is None or scaler.get_scale() == found[-1]
    assert (shell.state.params["main"]["w"].item(), found) == (weight, scales)


def trained(precision: str, every: int, losses: Sequence[float], vetoes: dict[Stage, frozenset[int]]) -> Shell:
    """Train under vetoes at all gated stages."""
    veto = [vetoing(held, stage=stage, name=stage.name.lower()) for stage, held in vetoes.items()]
    shell = sgd_shell(Weight(), [Accumulate(every=every), MixedPrecision(precision=precision), *veto])
    run(shell, losses)
    return shell


@given(
    every=st.sampled_from([1, 2, 4]),
    losses=st.lists(st.integers(-8, 8), min_size=1, max_size=COUNT),
    vetoes=st.fixed_dictionaries({Stage.BEFORE_BATCH: batches, Stage.DO_BACKWARD: batches, STEP: batches}),
)
def test_scaling_changes_no_result(every: int, losses: list[int], vetoes: dict[Stage, frozenset[int]]) -> None:
    """Without overflows a scaled run is bitwise the unscaled one, whatever is vetoed at which stage."""
    plain, scaled = (trained(precision, every, losses, vetoes) for precision in ("float32", "float16"))
    assert torch.equal(plain.state.params["main"]["w"], scaled.state.params["main"]["w"])
    assert plain.state.clock.step == scaled.state.clock.step
    assert scaled.state.scaler["growth_tracker"] == scaled.state.clock.step
