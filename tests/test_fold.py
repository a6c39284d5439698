"""The fold: order, exactly once, who sees which veto, loss threading, and what may not stand together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import functrain
from functrain import (
    EMA,
    GATED_STAGES,
    UPDATE_STAGES,
    Accumulate,
    ClipNorm,
    FrozenMap,
    Hook,
    Outcome,
    Pipeline,
    SkipNonFinite,
    Stage,
    TrainState,
    fold,
)
from tests.scripted import STEP

Log = list[tuple[str, Any]]
OTHERS = sorted(set(Stage) - GATED_STAGES, key=list(Stage).index)


def answering(name: str, log: Log, proceed: Any = True, *, priority: int = 50, stages: Any = tuple(Stage)) -> Hook:
    """Return a hook that logs what it was told and gives a fixed answer."""

    def answer(state: TrainState, _stage: Stage, will_skip: Any) -> Any:
        log.append((name, will_skip))
        return state, proceed, state.loss

    return functrain.hook(answer, name=name, priority=priority, stages=stages)


def bare(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Change nothing."""
    return state, True, state.loss


@given(st.lists(st.integers(-5, 5), max_size=8))
def test_order_is_the_stable_sort_by_priority(priorities: list[int]) -> None:
    """Lower runs first, equal priorities keep the order in which they were given."""
    log: Log = []
    hooks = [answering(f"h{place}", log, priority=each) for place, each in enumerate(priorities)]
    pipeline = fold(*hooks)
    expected = sorted(hooks, key=lambda each: each.priority)
    assert all(each is other for each, other in zip(pipeline, expected, strict=True))
    pipeline(TrainState(), Stage.AFTER_BATCH, False)
    assert [name for name, _ in log] == [each.name for each in expected]


def test_nested_pipelines_flatten_and_keep_their_instances() -> None:
    """A pipeline of pipelines is the pipeline of all members, which stay the same objects."""
    a, b, c, d = (Hook(name=name, priority=p) for name, p in [("a", 3), ("b", 1), ("c", 2), ("d", 1)])
    flat = fold(a, fold(b, fold(c)), d)
    assert [each.name for each in flat] == ["b", "d", "c", "a"]
    assert flat == (a + b) + (c + d) == fold(a, b, c, d)
    assert all(flat[each.name] is each for each in (a, b, c, d))
    assert not any(isinstance(each, Pipeline) for each in flat)


def test_plus_composes_hooks_functions_and_pipelines() -> None:
    """``+`` is fold, from either side."""
    assert (Hook() + bare) == (fold(Hook(), bare))
    assert [each.name for each in bare + Hook()] == ["bare", "hook"]
    assert [each.name for each in fold(Hook()) + fold(bare)] == ["hook", "bare"]
    for other in (3, EMA, [Hook()], None):
        with pytest.raises(TypeError, match="unsupported operand"):
            Hook() + other


def test_the_empty_pipeline_is_the_identity() -> None:
    """It gives state, not will_skip and loss back."""
    state = TrainState(loss=torch.tensor(1.0))
    for stage in Stage:
        assert fold()(state, stage, False) == Outcome(state, True, state.loss)
        assert fold()(state, stage, True) == Outcome(state, False, state.loss)
    assert len(fold()) == 0


def test_a_lone_pipeline_is_returned_as_it_is() -> None:
    """Folding a pipeline again makes nothing new."""
    pipeline = fold(Hook())
    assert fold(pipeline) is pipeline


def test_a_pipeline_is_addressed_by_name() -> None:
    """Members are found by name; an unknown one lists those there are."""
    clip = ClipNorm(max_norm=1.0)
    pipeline = fold(EMA(), clip)
    assert pipeline["clip"] is clip
    assert len(pipeline) == 2
    with pytest.raises(KeyError, match=r"no hook named 'clp'; this pipeline has \['clip', 'ema'\]"):
        pipeline["clp"]


@pytest.mark.parametrize("stage", Stage)
def test_every_claimant_is_called_exactly_once_also_after_a_veto(stage: Stage) -> None:
    """No veto, passed in or given, keeps a claiming hook from being called; others are not called."""
    log: Log = []
    hooks = [answering(name, log, proceed=False) for name in "abc"]
    other = answering("other", log, stages=[each for each in Stage if each is not stage])
    fold(*hooks, other)(TrainState(), stage, True)
    assert [name for name, _ in log] == ["a", "b", "c"]


@pytest.mark.parametrize("stage", sorted(GATED_STAGES, key=list(Stage).index))
@given(came_in=st.booleans(), verdicts=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=4))
def test_at_a_gated_stage_later_hooks_see_the_veto(
    stage: Stage, came_in: bool, verdicts: list[tuple[bool, bool]]
) -> None:
    """Hook i is told what the caller passed or any veto before it, bools and tensors mixed."""
    log: Log = []
    answers = [torch.tensor(proceed) if tensor else proceed for proceed, tensor in verdicts]
    pipeline = fold(*(answering(f"h{i}", log, each) for i, each in enumerate(answers)))
    outcome = pipeline(TrainState(loss=torch.tensor(0.0)), stage, came_in)
    vetoed = [not proceed for proceed, _ in verdicts]
    assert [bool(told) for _, told in log] == [came_in or any(vetoed[:i]) for i in range(len(vetoed))]
    assert bool(outcome.proceed) is not (came_in or any(vetoed))


@pytest.mark.parametrize("stage", OTHERS)
@pytest.mark.parametrize("came_in", [False, True])
def test_elsewhere_every_hook_sees_what_the_caller_passed(stage: Stage, came_in: bool) -> None:
    """At a stage without a gate proceed is not read, whatever it is."""
    log: Log = []
    answers: list[Any] = [False, None, "no", torch.tensor([1.0, 2.0])]
    outcome = fold(*(answering(f"h{i}", log, each) for i, each in enumerate(answers)))(TrainState(), stage, came_in)
    assert [told for _, told in log] == [came_in] * 4
    assert outcome.proceed is not came_in


def test_bools_fold_to_a_bool_and_a_tensor_makes_a_tensor() -> None:
    """The verdict is computed by logical_and, never by asking a device."""
    meta = torch.zeros((), dtype=torch.bool, device="meta")
    state = TrainState(loss=torch.tensor(0.0))
    assert fold(answering("a", []), answering("b", []))(state, STEP, False).proceed is True
    found = fold(answering("a", []), answering("b", [], meta), answering("c", []))(state, STEP, False).proceed
    assert isinstance(found, Tensor)
    assert (found.device.type, found.dtype, found.ndim) == ("meta", torch.bool, 0)
    assert fold(answering("a", [], meta), answering("b", [], False))(state, STEP, False).proceed is False


def test_vetoes_are_recorded_by_stage_and_name() -> None:
    """The state answers who vetoed what, for bools and tensors, and says False for who did not."""
    yes, no = torch.tensor(True), torch.tensor(False)
    pipeline = fold(*(answering(name, [], each) for name, each in [("a", True), ("b", False), ("c", no), ("d", yes)]))
    state = pipeline(pipeline.prepared(TrainState()), STEP, False).state
    assert {name: bool(state.veto(STEP, name)) for name in "abcd"} == {"a": False, "b": True, "c": True, "d": False}
    assert not any(state.veto(Stage.BEFORE_BATCH, name) for name in "abcd")


def test_the_loss_is_threaded_and_the_raw_loss_stays() -> None:
    """At DO_BACKWARD each hook sees its predecessor's loss in state.loss."""
    seen: list[tuple[float, float]] = []

    def plus(number: float, name: str) -> Hook:
        def add(state: TrainState, _stage: Stage, _skip: Any) -> Any:
            seen.append((state.loss.item(), state.raw_loss.item()))
            return state, True, state.loss + number

        return functrain.hook(add, name=name, stages=Stage.DO_BACKWARD)

    state = TrainState(loss=torch.tensor(1.0), raw_loss=torch.tensor(1.0))
    outcome = fold(plus(1.0, "a"), plus(10.0, "b"))(state, Stage.DO_BACKWARD, False)
    assert seen == [(1.0, 1.0), (2.0, 1.0)]
    assert outcome.loss is outcome.state.loss
    assert (outcome.state.loss.item(), outcome.state.raw_loss.item()) == (12.0, 1.0)


@pytest.mark.parametrize("stage", sorted(set(UPDATE_STAGES) - {Stage.DO_BACKWARD}, key=list(Stage).index))
@pytest.mark.parametrize("loss", [None, "loss", torch.ones(3)])
def test_elsewhere_the_loss_is_not_read(stage: Stage, loss: Any) -> None:
    """What a hook returns as loss at another stage changes nothing."""
    other = functrain.hook(lambda state, _stage, _skip: (state, True, loss), name="other")
    state = TrainState(loss=torch.tensor(4.0))
    assert fold(other)(state, stage, False).state.loss is state.loss


def test_a_pipeline_is_a_hook_in_another_interpreter() -> None:
    """It takes will_skip in and gives proceed out, so a pipeline in a hook's place makes the same decision."""
    log: Log = []
    outcome = fold(answering("a", log))(TrainState(), STEP, True)
    assert (log, outcome.proceed) == ([("a", True)], False)


def test_a_pipeline_prints_as_a_table() -> None:
    """One row per claimed stage, one column per hook, in dispatch order."""
    assert str(fold(EMA(), Accumulate(every=2))).splitlines() == [
        "stage                 10 accumulate  50 ema",
        "--------------------  -------------  ------",
        "BEFORE_BATCH                x          .",
        "DO_BACKWARD                 x          .",
        "DO_OPTIMIZER_STEP           x          .",
        "AFTER_OPTIMIZER_STEP        x          x",
    ]
    assert str(fold()).startswith("stage")


def test_a_pipeline_resets_each_slot_by_its_own_hook() -> None:
    """What belongs to the open window is forgotten, what outlives it stays; each hook gets the slot that is its own."""
    slots = FrozenMap(
        {
            "accumulate": FrozenMap({"every": 4, "position": 3, "unit": 2.0}),
            "skip_nonfinite": FrozenMap({"bad": torch.tensor(True)}),
        }
    )
    after = (Accumulate(every=4) + SkipNonFinite(name="skip_nonfinite")).reset(slots)
    assert dict(after["accumulate"]) == {"every": 4, "position": 0, "unit": 2.0}
    assert not after["skip_nonfinite"]["bad"]
