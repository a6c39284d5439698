"""TrainState: one immutable value, cheap to replace, safe to print, copy and pickle."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
import torch

from functrain import FrozenMap, Stage, TrainState
from functrain._clock import Clock, any_of
from functrain._owners import Owners
from functrain._state import FIELDS, STATIC
from functrain._tree import leaves, paths, structure
from functrain._window import Window


def test_replace_leaves_the_original_and_shares_the_rest() -> None:
    """A replaced state differs in one field; all other fields are the same objects."""
    state = TrainState(params={"main": {"w": torch.ones(1)}})
    after = state.replace(clock=Clock(step=1))
    assert (state.clock.step, after.clock.step) == (0, 1)
    assert all(getattr(after, name) is getattr(state, name) for name in FIELDS if name != "clock")


def test_replace_freezes_dicts() -> None:
    """Dicts among the changes become frozen maps, as in the constructor."""
    state = TrainState().replace(grads={"main": {"w": torch.ones(1)}})
    assert type(state.grads) is FrozenMap
    assert type(state.grads["main"]) is FrozenMap


@pytest.mark.parametrize(("node", "kind"), [(TrainState(), "TrainState"), (Window(), "Window"), (Clock(), "Clock")])
def test_replace_refuses_unknown_fields(node: Any, kind: str) -> None:
    """A misspelt field is an error that lists the fields there are."""
    with pytest.raises(TypeError, match=f"{kind} has no field stpe, wnidow; there are .*,"):
        node.replace(wnidow=1, stpe=2)


@pytest.mark.parametrize("node", [TrainState(), Window(), Clock()], ids=lambda node: type(node).__name__)
def test_a_field_cannot_be_assigned(node: Any) -> None:
    """Records are frozen."""
    name = next(iter(node.__dict__))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(node, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(node, name)


def test_no_state_holds_none_where_a_leaf_should_be() -> None:
    """Torch's pytree and optree disagree about None, so a fresh state has none of it."""
    assert all(leaf is not None for leaf in leaves(TrainState()))
    assert TrainState().loss.isnan()


def test_two_fresh_states_share_no_tensor() -> None:
    """Each state has a loss and a seed of its own: one that is donated must not spoil another."""
    first, second = TrainState(), TrainState()
    assert first.loss is not second.loss
    assert first.rng is not second.rng


def test_the_fields_of_the_design_are_there() -> None:
    """Leaves and static fields are those of the design, in a fixed order."""
    expected = "params buffers grads loss raw_loss window clock hooks vetoes stepped metrics scaler hyper opt rng"
    assert (*expected.split(), "batch", "validation") == FIELDS
    assert set(STATIC) >= {"donated", "autocast", "rank", "world"}


def test_printing_a_state_reads_no_tensor() -> None:
    """Repr shows counts only, so that it works on tensors that have no data."""
    text = repr(TrainState(params={"main": {"w": torch.ones(2, device="meta")}}))
    assert "'params': 1" in text
    assert "tensor" not in text


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_copies_have_the_same_structure_and_content(copied: Any) -> None:
    """Copy, deepcopy and pickle keep structure, paths and values."""
    state = TrainState(
        params={"main": {"w": torch.ones(1)}}, vetoes={Stage.DO_BACKWARD: {"a": True}}, owners=Owners({"main": []})
    )
    again = copied(state)
    assert structure(again) == structure(state)
    assert list(paths(again)) == list(paths(state))
    assert again.params["main"]["w"].item() == 1.0
    assert again.vetoes[Stage.DO_BACKWARD]["a"] is True


def test_slot_lists_the_slots_there_are() -> None:
    """An unknown slot is a KeyError with the sorted names."""
    state = TrainState(hooks={"ema": {"n": 1}, "clip": {}})
    assert state.slot("ema")["n"] == 1
    with pytest.raises(KeyError, match=r"no slot for a hook named 'emma'; state.hooks has \['clip', 'ema'\]"):
        state.slot("emma")


def test_with_slot_changes_one_slot() -> None:
    """The other slots stay the same objects."""
    state = TrainState(hooks={"a": {"n": 1}, "b": {"n": 2}})
    after = state.with_slot("a", {"n": 5})
    assert (after.hooks["a"]["n"], state.hooks["a"]["n"]) == (5, 1)
    assert after.hooks["b"] is state.hooks["b"]


def test_metrics_are_detached_float32() -> None:
    """A metric keeps neither graph nor width."""
    loss = torch.tensor(2.0, dtype=torch.float64, requires_grad=True) * 3
    found = TrainState().with_metrics({"loss": loss}).metrics["loss"]
    assert (found.item(), found.dtype, found.requires_grad) == (6.0, torch.float32, False)


def test_veto_answers_who_skipped() -> None:
    """A hook that was not asked has not vetoed."""
    state = TrainState(vetoes={Stage.DO_BACKWARD: {"finite": True}})
    assert state.veto(Stage.DO_BACKWARD, "finite") is True
    assert state.veto(Stage.DO_BACKWARD, "spikes") is False
    assert state.veto(Stage.DO_OPTIMIZER_STEP, "finite") is False


def test_a_clock_counts_steps_skips_and_waiting() -> None:
    """A step resets the skips in a row, a skip counts, waiting inside a window is neither."""
    steps = FrozenMap({"a": True, "b": False})
    none = FrozenMap({"a": False, "b": False})
    clock = Clock(optimizer_steps=FrozenMap({"a": 0, "b": 0}))
    clock = clock.updated(False, none, False)
    assert (clock.step, clock.skipped, clock.batch) == (0, 0, 1)
    clock = clock.updated(True, none, False).updated(True, none, False)
    assert (clock.skipped, clock.consecutive_skips, clock.skipping_since) == (2, 2, 1)
    clock = clock.updated(True, steps, True)
    assert (clock.step, clock.skipped, clock.consecutive_skips, clock.skipping_since) == (1, 2, 0, -1)
    assert dict(clock.optimizer_steps) == {"a": 1, "b": 0}


def test_an_epoch_starts_its_own_count_of_batches() -> None:
    """next_epoch counts the epoch and restarts epoch_batch only."""
    waited: tuple[Any, ...] = (False, FrozenMap(), False)
    clock = Clock().updated(*waited).updated(*waited).next_epoch().updated(*waited)
    assert (clock.batch, clock.epoch, clock.epoch_batch) == (3, 1, 1)


def test_a_window_opens_as_its_own_boundary_and_empties() -> None:
    """A micro-batch that nobody accumulates is a window of one; a weighted window stays weighted while open."""
    window = Window(entered=1, weighted=True, weight=3.0, total=3.0).opened(last=True)
    assert (window.boundary, window.last, window.divisor, window.weight, window.weighted) == (True, True, 1, 1, True)
    assert (window.with_entry().entered, window.with_entry().total) == (2, 4.0)
    assert (window.emptied().entered, window.emptied().total, window.emptied().weighted) == (0, 0, False)
    assert window.emptied().opened(last=False).weighted is False


def test_owners_answer_by_parameter_and_by_model() -> None:
    """An optimizer is found by parameter, a model's optimizers in the order of the optimizers."""
    owners = Owners({"b": [("main", "w")], "a": [("main", "v"), ("teacher", "w")]})
    assert owners.of_model("main") == ("b", "a")
    assert owners.of_model("teacher") == ("a",)
    assert owners.of_model("nobody") == ()
    assert owners.of_parameter("teacher", "w") == "a"
    assert owners.of_parameter("teacher", "v") is None


def test_owners_compare_and_copy_by_content() -> None:
    """Equal tables are equal and hash alike; a pickle is equal, too."""
    first, second = Owners({"a": [("m", "w")]}), Owners({"a": (("m", "w"),)})
    assert first == second
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == first
    assert first != Owners({"a": []})


def test_any_of_needs_no_sync() -> None:
    """Flags of both kinds are folded; one tensor makes the answer a tensor unless a bool decides."""
    assert any_of(FrozenMap()) is False
    assert any_of(FrozenMap({"a": torch.tensor(False), "b": True})) is True
    found = any_of(FrozenMap({"a": torch.tensor(True), "b": False}))
    assert isinstance(found, torch.Tensor)
    assert found.item() is True


def test_a_record_that_would_be_the_same_is_itself() -> None:
    """``changed`` copies only where a value differs, and refuses a name that is no field."""
    window = Window()
    assert window.changed(boundary=True, divisor=1) is window
    assert vars(window.changed(boundary=True, divisor=2)) == vars(window.replace(divisor=2))
    with pytest.raises(TypeError, match="no field odd"):
        window.changed(odd=1)


@pytest.mark.parametrize("kind", [lambda number: number, torch.tensor], ids=["numbers", "tensors"])
def test_a_window_before_anybody_has_spoken(kind: Any) -> None:
    """Opened, it is its own boundary, divided by one; cleared, nothing has entered, and what was decided stays."""
    window = Window(boundary=kind(False), divisor=kind(4), entered=kind(2), total=kind(2.0), last=kind(True))
    opened, cleared = window.opened(last=kind(False)), window.cleared()
    assert (bool(opened.boundary), bool(opened.last), int(opened.divisor)) == (True, False, 1)
    assert (int(opened.entered), float(opened.total)) == (2, 2.0)
    assert (int(cleared.entered), float(cleared.total)) == (0, 0.0)
    assert (bool(cleared.boundary), bool(cleared.last), int(cleared.divisor)) == (False, True, 4)
