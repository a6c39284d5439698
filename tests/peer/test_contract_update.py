"""The rows "Update hook" of the contract that say "the same": both sides, side by side."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import functrain
from functrain import Hook, Stage, fold
from tests.contract.toys import push, scalar
from tests.peer.driver import Orchestrator, TrainingStage, UpdateHook
from tests.peer.toys import message_of, peer_of, recorder, shell_of, train
from tests.peer.user_hooks import PeerRecorder

pytestmark = pytest.mark.peer
GATED = ("BEFORE_BATCH", "DO_BACKWARD", "DO_OPTIMIZER_STEP")


@given(priorities=st.lists(st.integers(0, 3), max_size=8))
def test_priority_gives_one_order_on_both_sides(priorities: list[int]) -> None:
    """Lower first, ties in insertion order: the same order for any priorities; 50 by default."""
    theirs = [PeerRecorder(priority=priority) for priority in priorities]
    ours = [recorder([], name=f"h{i}", priority=priority) for i, priority in enumerate(priorities)]
    order = [theirs.index(each) for each in Orchestrator(*theirs).iter_hooks()]
    assert [ours.index(each) for each in fold(*ours)] == order
    assert UpdateHook().priority == Hook().priority == 50


def test_priority_is_read_once_at_composition() -> None:
    """The peer sorts once, when it composes; ours cannot change afterwards."""
    early, late = PeerRecorder(priority=1), PeerRecorder(priority=2)
    composed = early + late
    early.priority = 3
    assert list(composed.iter_hooks()) == [early, late]
    with pytest.raises(ValueError, match="frozen"):
        Hook().priority = 3


@pytest.mark.parametrize("stage", ["SETUP", *GATED, "AFTER_OPTIMIZER_STEP"])
def test_default_body_passes_the_loss_on(stage: str) -> None:
    """The base hook proceeds and returns the very loss, on both sides."""
    run, state = peer_of(scalar()), functrain.TrainState()
    run.context.loss = push(scalar(), 1.0)
    proceed, loss = UpdateHook()(run.context, TrainingStage[stage], False)
    assert (proceed, loss is run.context.loss) == (True, True)
    _, proceed, loss = Hook()(state, Stage[stage], False)
    assert (proceed, loss is state.loss) == (True, True)


def test_claims_the_four_update_stages() -> None:
    """Both claim the four update stages; the peer is also called at SETUP, where ours builds its slot."""
    theirs, ours = PeerRecorder(), []
    for run_of, hook in ((peer_of, theirs), (shell_of, recorder(ours))):
        train(run_of(model := scalar(), hook), model, 1.0)
    stages = ["BEFORE_BATCH", "DO_BACKWARD", "DO_OPTIMIZER_STEP", "AFTER_OPTIMIZER_STEP"]
    assert [stage for _, stage, _ in theirs.log] == ["SETUP", *stages]
    assert [stage for _, stage, _ in ours] == stages


def answering(side: str, stage: str, answer: object, log: list[Any]) -> tuple[Any, nn.Module]:
    """Build a run of either side in which one hook gives an answer at one stage, before another one that records."""
    model = scalar()
    if side == "peer":
        return peer_of(model, PeerRecorder({stage: (answer, None)}, priority=1), PeerRecorder(log=log)), model
    stages = frozenset(Stage)
    odd = recorder([], {stage: answer}, name="odd", priority=1, stages=stages)
    return shell_of(model, odd, recorder(log, stages=stages)), model


@pytest.mark.parametrize(("side", "name"), [("peer", "PeerRecorder"), ("functrain", "odd")])
@pytest.mark.parametrize("stage", ["BEFORE_BATCH", "DO_OPTIMIZER_STEP"])
@pytest.mark.parametrize("bad", [None, 1, "yes"])
def test_proceed_is_strict_at_gated_stages(side: str, name: str, stage: str, bad: object) -> None:
    """A bad `proceed` raises at once on both sides, with class or name, stage, type and remedy."""
    run, model = answering(side, stage, bad, log := [])
    said = message_of(TypeError, lambda: train(run, model, 1.0))
    facts = (name, stage, type(bad).__name__, "Return True to proceed or False to skip.")
    assert [part for part in facts if part not in said] == []
    assert model.weight.item() == 0.0
    assert stage not in {entry[1] for entry in log}


@pytest.mark.parametrize("side", ["peer", "functrain"])
@pytest.mark.parametrize("answer", [False, None])
@pytest.mark.parametrize("stage", ["SETUP", "AFTER_OPTIMIZER_STEP"])
def test_proceed_is_not_read_at_ungated_stages(side: str, stage: str, answer: object) -> None:
    """False or None at SETUP and AFTER_OPTIMIZER_STEP is no error and changes no later hook's `will_skip`."""
    run, model = answering(side, stage, answer, log := [])
    train(run, model, 1.0)
    assert model.weight.item() == -1.0
    assert [entry[2] for entry in log if entry[1] == stage] == [False]


def test_do_backward_without_a_false_is_the_same() -> None:
    """With no False, every hook gets `will_skip=False` at DO_BACKWARD on both sides."""
    theirs: list[Any] = []
    ours: list[Any] = []
    train(peer_of(model := scalar(), *(PeerRecorder(log=theirs) for _ in range(3))), model, 1.0)
    train(shell_of(model := scalar(), *(recorder(ours, name=n) for n in "abc")), model, 1.0)
    assert [entry[2] for entry in theirs if entry[1] == "DO_BACKWARD"] == [False] * 3
    assert [entry[2] for entry in ours if entry[1] == "DO_BACKWARD"] == [False] * 3


def test_loss_may_be_none_outside_do_backward() -> None:
    """A None for the loss at any other stage is no error on either side."""
    silent = dict.fromkeys(("SETUP", "BEFORE_BATCH", "DO_OPTIMIZER_STEP", "AFTER_OPTIMIZER_STEP"), (True, None))
    quiet = functrain.hook(lambda s, stage, _skip: (s, True, s.loss if stage is Stage.DO_BACKWARD else None), name="q")
    for run_of, hook in ((peer_of, PeerRecorder(silent)), (shell_of, quiet)):
        train(run_of(model := scalar(), hook), model, 2.0)
        assert model.weight.item() == -2.0


def _family(base: Any, key: str) -> list[object]:
    """Build two hooks of one family, given in the wrong order."""
    annotated = {"__annotations__": {"priority": int, key: str | None}} if base is Hook else {}
    early = type("Early", (base,), {"priority": 5, key: "family", **annotated})
    late = type("Late", (base,), {"priority": 6, key: "family", **annotated})
    return [late(), early()]


@pytest.mark.parametrize(("base", "key"), [(UpdateHook, "_exclusive_update_key"), (Hook, "exclusive")])
def test_exclusive_family_stands_at_most_once(base: Any, key: str) -> None:
    """ValueError naming the key and both types, first in priority order, from `+` on both sides."""
    late, early = _family(base, key)
    said = message_of(ValueError, lambda: late + early)
    assert "'family'" in said
    assert 0 < said.index("Early") < said.index("Late")


@pytest.mark.parametrize("base", [UpdateHook, Hook])
@pytest.mark.parametrize("other", [1, None, "ema"])
def test_plus_refuses_anything_else(base: Any, other: Any) -> None:
    """`+` with anything that is no hook is a TypeError on both sides, left and right."""
    for action in (lambda: base() + other, lambda: other + base()):
        with pytest.raises(TypeError):
            action()
