"""A run that is saved and restored goes on as if it had not been, and faults of saving are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import functrain
from functrain import EMA, Accumulate, FrozenMap, MixedPrecision, Stage, TrainState
from functrain.testing import resuming
from functrain.testing.differences import Disagreement
from functrain.testing.events import EVENTS, Event, schedules
from functrain.testing.resuming import WAYS, Way, check_restored
from tests.testing.runs import adamw, counted_outside, normed, partial_pipelines, sgd, training

RESUMABLE = [event for event in EVENTS if event not in ("restore", "swap")]


@given(
    partial_pipelines(), st.sampled_from([sgd, adamw]), schedules(events=[*RESUMABLE, "save"]), st.sampled_from(WAYS)
)
def test_saved_and_restored_runs_are_straight(
    hooks: list[Any], optimizer: Any, schedule: list[Event], way: Way
) -> None:
    """In mid-window too, after overflows and drops, each way back leads to the same numbers."""
    check_restored(training(*hooks, optimizer=optimizer, model=normed), schedule, ways=[way])


def dropping() -> nn.Module:
    """Return a model that draws."""
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))


def test_what_a_model_draws_is_the_same() -> None:
    """The generators are part of what is saved, so dropout goes on where it was."""
    check_restored(training(Accumulate(every=2), EMA(), model=dropping))


@pytest.mark.parametrize("way", WAYS)
def test_a_hook_that_counts_on_itself_is_found(way: Way) -> None:
    """What is not in the state does not come back."""
    with pytest.raises(Disagreement, match=f"the straight run and one through '{way}'"):
        check_restored(training(counted_outside()), ways=[way])


def test_what_a_state_dict_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is not stored is a fault of the straight and the resumed run alike."""
    from functrain.shell import dictionaries

    merged = dictionaries.merged_state

    def forgetful(state: TrainState, stored: Any) -> TrainState:
        return merged(state, stored).replace(scaler=state.scaler)

    monkeypatch.setattr(dictionaries, "merged_state", forgetful)
    run = training(MixedPrecision(precision="fp16", growth_interval=1))
    with pytest.raises(Disagreement, match=r'shell\["state"\]\["scaler"\]\["scale"\]'):
        check_restored(run, ways=["state_dict"])
    check_restored(run, ways=["snapshot"])


def test_a_snapshot_that_does_not_stay_true_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that shares its tensors is spoilt by what comes after it."""
    from functrain.shell import snapshot

    monkeypatch.setattr(snapshot, "copied", lambda tree: tree)
    with pytest.raises(Disagreement, match=r'shell\["state"\]\["params"\]'):
        check_restored(training(), ways=["snapshot"])


def test_a_bridge_that_loses_momentum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the optimizer has to come along."""
    from functrain.pure import bridge

    monkeypatch.setattr(bridge, "write_torch_state", lambda *_: None)
    with pytest.raises(Disagreement, match="momentum_buffer"):
        check_restored(training(), ways=["bridges"])


def test_a_pure_step_that_writes_into_its_state_is_found() -> None:
    """A state is its own snapshot only as long as nobody writes into it."""

    def write(state: TrainState, stage: Stage, _skip: Any) -> Any:
        count = state.hooks["write"]["n"]
        if stage is Stage.AFTER_OPTIMIZER_STEP:
            count.add_(1.0)
        return state, True, state.loss * count.sum()

    stages = {Stage.DO_BACKWARD, Stage.AFTER_OPTIMIZER_STEP}
    hook = functrain.hook(write, stages=stages, init=lambda _: FrozenMap({"n": torch.ones(1)}))
    with pytest.raises(Disagreement, match="through 'pure'"):
        check_restored(training(hook), ways=["pure"])


def test_unknown_ways_are_refused() -> None:
    """The message lists those there are."""
    with pytest.raises(ValueError, match="unknown way 'tape' to save and restore; there are"):
        check_restored(training(), ways=["tape"])  # type: ignore[list-item]


@pytest.mark.parametrize("way", ["snapshot", "state_dict"])
def test_the_dtype_of_a_loss_comes_back(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """A way back in the shell that widens the loss is told; only over a bridge the dtype is another."""
    honest = resuming._THERE_AND_BACK[way]

    def widening(run: Any, place: int) -> Any:
        back = honest(run, place)
        back.shell._driver.state = back.shell.state.replace(loss=back.shell.state.loss.double())
        return back

    monkeypatch.setitem(resuming._THERE_AND_BACK, way, widening)
    with pytest.raises(Disagreement, match="loss"):
        check_restored(training(), ["fine", "save"], ways=[way])
