"""The oracles hold of the library, and each finds the fault that it is for."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import functrain
from functrain import EMA, Accumulate, ClipNorm, SkipNonFinite, Stage, TrainState, pure
from functrain.testing.differences import Disagreement, alike, unlike
from functrain.testing.events import Event, schedules
from functrain.testing.micro_batches import check_micro_batches
from functrain.testing.oracles import check_compiled, check_interpreters, check_lanes
from functrain.testing.training import Training
from tests.testing.runs import (
    adamw,
    batches,
    counted_outside,
    mean_square,
    normed,
    pair,
    pair_loss,
    partial_pipelines,
    perceptron,
    sgd,
    sgd_each,
    training,
)

STEP, AFTER = Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP


@given(partial_pipelines(), st.sampled_from([sgd, adamw]), schedules())
def test_shell_and_engine_agree_step_by_step(hooks: list[Any], optimizer: Any, schedule: list[Event]) -> None:
    """From the same state every step ends bitwise the same with SGD, and within 2 ulp with AdamW."""
    check_interpreters(training(*hooks, optimizer=optimizer, model=normed), schedule)


def test_shell_and_engine_agree_on_several_models() -> None:
    """Models and optimizers by key need nothing more; each optimizer has its counterpart."""
    run = Training(pair, pair_loss, sgd_each, batches(), [EMA(model_key="teacher"), EMA(model_key="student")])
    check_interpreters(run, ["fine", "drop", "fine", "swap", "fine", "restore", "fine"])


def test_a_hook_that_counts_on_itself_tells_the_interpreters_apart() -> None:
    """The error names the path, both values and the event."""
    with pytest.raises(Disagreement, match=r"after 'fine' at place 1, differ") as caught:
        check_interpreters(training(counted_outside()))
    assert any(line.startswith('state.params["main"]["0.weight"]: ') for line in caught.value.lines)


def test_a_twin_that_is_none_is_found() -> None:
    """An optimizer that is given as the pure counterpart of another one does not pass for it."""
    run = replace(training(), twin=pure.sgd(0.05))
    with pytest.raises(Disagreement, match="after 'fine' at place 1, differ"):
        check_interpreters(run)
    check_interpreters(replace(run, twin=pure.sgd(0.05, momentum=0.9)))


def test_an_optimizer_without_counterpart_is_refused() -> None:
    """There is nothing to compare with; the message says for what there is."""
    with pytest.raises(ValueError, match="RMSprop; SGD, Adam and AdamW have pure counterparts"):
        check_interpreters(training(optimizer=lambda params: torch.optim.RMSprop(params, lr=0.1)))


def test_a_run_needs_batches() -> None:
    """A run of nothing would show nothing."""
    with pytest.raises(ValueError, match="at least one micro-batch"):
        Training(perceptron, mean_square, sgd, [])


def test_compiled_and_eager() -> None:
    """A stage of the fold is one graph over several calls, and gives what the eager fold gives."""
    hook = ClipNorm(max_norm=0.1)

    def step(state: TrainState, batch: torch.Tensor) -> TrainState:
        return hook(state.replace(grads={"main": {"w": batch}}), STEP, torch.tensor(False)).state

    start = functrain.fold(hook).prepared(TrainState(params={"main": {"w": torch.ones(3)}}))
    check_compiled(step, pure.numbers.tensored(start.replace(grads=start.params)), batches(3))


def test_a_step_that_compiles_again_is_found() -> None:
    """A number that changes from step to step and is no tensor makes another graph each time."""

    def step(state: TrainState, batch: torch.Tensor) -> TrainState:
        return state.replace(loss=state.loss + batch, rank=state.rank + 1)

    start = TrainState(loss=torch.zeros(()))
    with pytest.raises(Disagreement, match="graphs: 2 != 1"):
        check_compiled(step, start, [torch.ones(())] * 2)


def test_a_step_that_draws_is_found() -> None:
    """What comes from outside the state is another one when it is compiled."""

    def step(state: TrainState, batch: torch.Tensor) -> TrainState:
        return state.replace(loss=batch + torch.rand(()))

    with pytest.raises(Disagreement, match="eager and compiled step, after batch 0, differ"):
        check_compiled(step, TrainState(loss=torch.zeros(())), [torch.ones(())])


def test_lanes_and_lone_runs() -> None:
    """Each lane of a vmapped run equals the run alone, also where one lane is skipped and the other is not."""
    run, state = training(Accumulate(every=2), SkipNonFinite(), EMA(decay=0.5)).start()
    doubled = state.replace(params=functrain._tree.map_leaves(lambda leaf: leaf * 1e30, state.params))
    check_lanes(run.step, [state, doubled], batches(4))


def test_lanes_that_look_at_each_other_are_found() -> None:
    """A draw is one for all lanes, and another for each lone run."""

    def step(state: TrainState, batch: torch.Tensor) -> TrainState:
        return state.replace(loss=batch * random.random())  # noqa: S311 - no secret

    states = [TrainState(loss=torch.zeros(()), rng=torch.tensor(seed)) for seed in range(2)]
    states = [pure.train_step(None, {}, ()).init({"w": torch.zeros(())}).replace(rng=each.rng) for each in states]
    with pytest.raises(Disagreement, match="lane 0 and its run alone, after batch 0, differ"):
        check_lanes(step, states, [torch.ones(())])


@pytest.mark.parametrize("parts", [2, 4])
def test_one_batch_and_micro_batches(parts: int) -> None:
    """Cut batches update as whole ones do, clipped and averaged, with a batch that is skipped among them."""
    run = replace(training(ClipNorm(max_norm=0.1), SkipNonFinite(drop=False), EMA(decay=0.5)), batches=batches(4))
    run.batches[1].mul_(float("nan"))
    check_micro_batches(run, parts)


def test_a_loss_that_adds_up_is_found() -> None:
    """A sum over samples is no mean: micro-batches then update with a part of the gradient only."""
    run = replace(training(), loss_fn=lambda model, x: model(x).square().sum())
    with pytest.raises(Disagreement, match=r"one batch and 2 micro-batches, after batch 0, differ"):
        check_micro_batches(run)


def test_a_hook_that_clips_every_micro_batch_is_found() -> None:
    """What is not linear has to wait for the boundary."""

    def clip_early(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        clipped = functrain._tree.map_leaves(lambda grad: grad.clamp(-0.01, 0.01), state.grads)
        return state.replace(grads=clipped), True, state.loss

    early = functrain.hook(clip_early, stages=STEP, writes={"grads"})
    with pytest.raises(Disagreement, match=r"params"):
        check_micro_batches(training(early))


def test_what_cannot_be_cut_is_refused() -> None:
    """Unequal parts have unequal weights, and two windows in one pipeline are none."""
    with pytest.raises(ValueError, match="a batch of 4 cannot be cut into 3 equal parts"):
        check_micro_batches(training(), 3)
    with pytest.raises(ValueError, match="accumulate"):
        check_micro_batches(training(Accumulate(every=2)))


LEAVES: list[tuple[Any, Any, bool]] = [
    (1, torch.tensor(1), True),
    (1, torch.tensor(2), False),
    (True, 1, False),
    (0, 0.0, True),
    (float("nan"), torch.tensor(float("nan"), dtype=torch.float64), True),
    (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
    (torch.ones(1), torch.ones(1).double(), False),
    (torch.ones(1), torch.ones(1, 1), False),
    (torch.ones(1), "missing", False),
    ("a", "a", True),
]


@pytest.mark.parametrize(("one", "other", "same"), LEAVES)
def test_what_is_alike(one: Any, other: Any, same: bool) -> None:
    """Numbers are compared by value in either form, tensors by dtype, shape and value; NaN equals NaN."""
    assert alike(one, other) is same
    assert alike(other, one) is same


def test_tolerance_is_for_real_numbers() -> None:
    """Counts have to be the same, however large the tolerance."""
    assert alike(1.0, 1.1, 0.2)
    assert alike(torch.ones(2), torch.ones(2) * 1.1, 0.2)
    assert not alike(100, 101, 0.2)
    assert not alike(torch.tensor([100, 7]), torch.tensor([101, 7]), 0.2)


def test_missing_leaves_are_named() -> None:
    """What one tree lacks is a difference, too."""
    assert list(unlike({"a": 1}, {"b": 2}, "state")) == ['state["a"]: 1 != missing', 'state["b"]: missing != 2']


def test_the_models_of_a_training_are_fresh() -> None:
    """Each start has the same weights in other objects, so that runs do not touch each other."""
    run = training()
    (_, one), (_, two) = run.start(), run.start()
    assert list(unlike(one, two, "state")) == []
    assert all(a is not b for a, b in zip(nn.ModuleList([run.model()]).parameters(), run.model().parameters()))  # noqa: B905
