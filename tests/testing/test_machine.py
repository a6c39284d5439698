"""The machine passes on pipelines of the library, prints what can be run again, and is built as one is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from torch import nn

import functrain
from functrain import EMA, Accumulate, SkipNonFinite, Stage, TrainState
from functrain.testing.differences import Disagreement
from functrain.testing.machine import TrainingMachine
from functrain.testing.machine_of import training_machine
from functrain.testing.training import Training
from tests.testing.runs import (
    adamw,
    batches,
    full_pipelines,
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

SOME = settings(
    settings(), max_examples=settings().max_examples // 2, stateful_step_count=10, suppress_health_check=[*HealthCheck]
)


class Full(TrainingMachine):
    """Every family of the library, with SGD."""

    training = training(model=normed)
    hooks = full_pipelines()


class Partial(TrainingMachine):
    """Some families of the library, with AdamW."""

    training = training(optimizer=adamw)
    hooks = partial_pipelines()


class Several(TrainingMachine):
    """Two models, each with its optimizer and its average."""

    training = Training(
        pair, pair_loss, sgd_each, batches(), [Accumulate(every=2), EMA(model_key="teacher"), EMA(model_key="student")]
    )


class ShellAlone(TrainingMachine):
    """An optimizer that the pure engine does not have."""

    training = training(SkipNonFinite(), EMA(), optimizer=lambda params: torch.optim.RMSprop(params, lr=0.01))
    beside_pure = False


@pytest.mark.parametrize("machine", [Full, Partial, Several, ShellAlone], ids=lambda each: each.__name__)
def test_the_library_keeps_the_global_laws(machine: type[TrainingMachine]) -> None:
    """Whatever happens to a run of library hooks, in any order, every invariant holds."""
    run_state_machine_as_test(machine, settings=SOME)


def test_every_rule_is_replayed_by_hand() -> None:
    """A run can be written down as it is printed, and ends where it says."""
    state = Full()
    state.begin(hooks=[Accumulate(every=2), SkipNonFinite(), EMA(decay=0.5)])
    state.accumulate(place=0)
    state.save()
    state.step(place=1)
    state.overflow(place=2, kind="inf")
    state.spike(place=3)
    state.drop(place=4)
    state.leave(place=5)
    state.flush()
    state.swap_averages(nested=True, fails=True)
    state.fail(place=6, where="optimizer")
    state.laws_hold()
    clock = state.watched.run.shell.state.clock
    assert (clock.batch, clock.step, clock.skipped, clock.epoch) == (7, 2, 1, 1)
    state.restore(by="state_dict")
    state.laws_hold()
    assert state.watched.run.shell.state.clock.batch == 1
    state.teardown()


def worse(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Make a number of what is none."""
    grads = functrain._tree.map_leaves(lambda grad: grad / 0.0, state.grads)
    return state.replace(grads=grads), True, state.loss


def test_a_failing_run_prints_as_code_that_fails_again() -> None:
    """What Hypothesis prints can be pasted: it builds the machine, takes every step, and raises the same error."""
    hook = functrain.hook(worse, stages=Stage.DO_OPTIMIZER_STEP, writes={"grads"}, priority=90)
    machine = training_machine(
        model=perceptron,
        loss_fn=mean_square,
        optimizer=sgd,
        batches=batches(),
        hooks=[SkipNonFinite(), hook],
        name="Mine",
    )
    with pytest.raises(Disagreement, match="parameters and finite ones differ") as caught:
        run_state_machine_as_test(
            machine, settings=settings(SOME, database=None, phases=[Phase.generate, Phase.shrink])
        )
    printed = "\n".join(caught.value.__notes__)
    code = printed[printed.index("state = Mine()") : printed.index("state.teardown()")]
    assert len(code.splitlines()) == 4  # the machine, its start, the one rule that shows it, and the law
    with pytest.raises(Disagreement, match="parameters and finite ones differ"):
        exec(code, {"Mine": machine})  # noqa: S102 - that it runs is what is tested


def test_finite_is_asked_of_guarded_pipelines_only() -> None:
    """Without a SkipNonFinite a NaN may pass, unless the user says otherwise; with one it may if the user says so."""

    def run_of(*hooks: Any, **options: Any) -> TrainingMachine:
        made = training_machine(
            model=perceptron, loss_fn=mean_square, optimizer=sgd, batches=batches(), hooks=hooks, **options
        )
        state = made()
        state.overflow(place=0, kind="nan")
        return state

    run_of().laws_hold()
    run_of(SkipNonFinite()).laws_hold()
    with pytest.raises(Disagreement, match="parameters and finite ones differ"):
        run_of(finite=True).laws_hold()


def test_what_waits_is_accumulated() -> None:
    """The rule for micro-batches that close no window is there only where one can."""
    from functrain.testing.global_laws import waits

    state = Full()
    state.begin(hooks=[Accumulate(every=3)])
    found = []
    for _ in range(4):
        found.append(waits(state.watched.run))
        state.watched.present("fine", 0)
    assert found == [True, True, False, True]
    state.begin(hooks=[])
    assert not waits(state.watched.run)


def test_a_lone_optimizer_needs_a_counterpart_beside_the_pure_engine() -> None:
    """The error says which optimizers have one."""

    class Lonely(TrainingMachine):
        training = ShellAlone.training

    with pytest.raises(ValueError, match="RMSprop; SGD, Adam and AdamW have pure counterparts"):
        Lonely()


def test_models_may_hold_any_module() -> None:
    """The machine asks nothing of a model but what a shell asks."""
    state = training_machine(
        model=lambda: nn.Linear(3, 1), loss_fn=mean_square, optimizer=sgd, batches=batches(), hooks=EMA()
    )()
    state.step(place=0)
    state.swap_averages(nested=False, fails=False)
    state.laws_hold()
