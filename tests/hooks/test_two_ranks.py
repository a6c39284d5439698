"""What hooks decide from the numbers of two ranks, with the other rank's written down instead of run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from functrain import Accumulate, FixedLimit, SkipSpikes, Stage, TrainState
from functrain._collectives import gathering


def judged(own: float, other: list[float], hook: SkipSpikes) -> Any:
    """Return what a hook says of a window of one micro-batch, of which another rank has seen ``other``."""
    state = TrainState(loss=torch.tensor(own), raw_loss=torch.tensor(own), world=2)
    state = state.replace(hooks={hook.name: hook.init(state)}, window=state.window.with_entry())
    state = hook(state, Stage.DO_BACKWARD, False).state
    with gathering(lambda values: torch.stack([values, torch.tensor(other, dtype=values.dtype)])):
        return hook(state, Stage.DO_OPTIMIZER_STEP, False)


@pytest.mark.parametrize(("other", "proceed"), [(2.0, True), (9.0, False), (float("nan"), False)])
def test_a_spike_of_one_rank_is_a_spike_of_all(other: float, proceed: bool) -> None:
    """The worst loss of all ranks is judged, and the numbers of the window are those of all."""
    hook = SkipSpikes(by=FixedLimit(limit=5.0))
    outcome = judged(1.0, [other, other, 1.0], hook)
    assert bool(outcome.proceed) is proceed
    slot = outcome.state.hooks[hook.name]
    assert slot["count"] == 2.0
    assert torch.equal(slot["sum"].nan_to_num(), torch.tensor(1.0 + other, dtype=torch.float64).nan_to_num())


@pytest.mark.parametrize("drop", [False, True])
def test_only_what_drops_vetoes_the_backward(drop: bool) -> None:
    """A spike vetoes the micro-batch if it is to be dropped, and is counted with the window if not."""
    hook = SkipSpikes(by=FixedLimit(limit=5.0), drop=drop)
    state = TrainState(loss=torch.tensor(9.0), raw_loss=torch.tensor(9.0))
    outcome = hook(state.replace(hooks={hook.name: hook.init(state)}), Stage.DO_BACKWARD, False)
    assert bool(outcome.proceed) is not drop
    assert int(outcome.state.hooks[hook.name]["count"]) == (0 if drop else 1)


@pytest.mark.parametrize(("other", "unit"), [(3.0, 8.0), (1000.0, 1024.0)])
def test_weights_have_one_unit_on_all_ranks(other: float, unit: float) -> None:
    """With a loss scale: the power of two at the largest first weight of any rank; a number, as in one process."""
    hook = Accumulate(every=2)
    state = TrainState(world=2, scaler={"scale": 4.0, "growth_tracker": 0, "found_inf": {}})
    state = state.replace(hooks={hook.name: hook.init(state)}, window=state.window.weighed(7.0))
    with gathering(lambda value: torch.stack([value, torch.tensor(other, dtype=value.dtype)])):
        after = hook(state, Stage.DO_BACKWARD, False).state
    assert after.hooks[hook.name]["unit"] == unit
    assert (after.window.weight, type(after.window.weight)) == (7.0 / unit, float)


def test_alone_nobody_is_asked() -> None:
    """In a run of one process nothing is gathered."""

    def refuse(_: torch.Tensor) -> torch.Tensor:
        pytest.fail("asked other ranks")

    hook = Accumulate(every=2)
    state = TrainState(scaler={"scale": 4.0, "growth_tracker": 0, "found_inf": {}})
    state = state.replace(hooks={hook.name: hook.init(state)}, window=state.window.weighed(7.0))
    with gathering(refuse):
        assert hook(state, Stage.DO_BACKWARD, False).state.window.weight == 7.0 / 8.0
