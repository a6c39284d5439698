"""Every n executed steps: on the edge of the count, around the whole update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from functrain import EMA, Accumulate, ClipNorm, Hook, Stage, TrainState, every, fold, observe
from functrain._clock import Clock
from functrain._window import Window
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import STEP, vetoing

AFTER = Stage.AFTER_OPTIMIZER_STEP


def counted(hook_name: str, stages: Any) -> tuple[Hook, list[Any]]:
    """Return an observer and the list of ``(step, stage)`` at which it looked."""
    seen: list[Any] = []
    look = observe(hook_name, lambda state, stage: seen.append((state.clock.step, stage)), stages=stages)
    return look, seen


@given(st.integers(1, 5), st.lists(st.sampled_from(["step", "skip"]), max_size=12))
def test_every_counts_executed_steps(n: int, plan: list[str]) -> None:
    """The hook runs at the step that brings the count to a multiple of n, once, and never at a skip."""
    look, seen = counted("look", AFTER)
    shell = sgd_shell(Weight(), every(n, look) + vetoing([i for i, each in enumerate(plan) if each == "skip"]))
    run(shell, [1.0] * len(plan))
    assert [count + 1 for count, _ in seen] == list(range(n, plan.count("step") + 1, n))


def test_d08_every_fires_once_when_the_step_count_changes_to_a_multiple() -> None:
    """Under accumulation over 4 an observer of every 4th step fires once per 16 micro-batches."""
    look, seen = counted("look", AFTER)
    shell = sgd_shell(Weight(), Accumulate(every=4) + every(4, look))
    for batch in range(32):
        step(shell, 1.0)
        assert len(seen) == (batch + 1) // 16


def test_every_holds_around_the_whole_update_of_the_nth_step() -> None:
    """At all stages of one update, from BEFORE_BATCH on, the hook is on or off together."""
    stages = (Stage.BEFORE_BATCH, Stage.BEFORE_BACKWARD, Stage.DO_BACKWARD, STEP, AFTER)
    look, seen = counted("look", stages)
    run(sgd_shell(Weight(), every(2, look)), [1.0] * 5)
    assert seen == [(count, stage) for count in (1, 3) for stage in stages]


def test_every_clips_each_nth_step() -> None:
    """A hook that writes gradients writes them at every n-th step only."""
    shell = sgd_shell(Weight(), every(2, ClipNorm(max_norm=1.0)))
    run(shell, [5.0, 5.0, 5.0, 5.0])
    assert applied(shell) == pytest.approx(12.0)


def test_every_reads_tensor_counts_alike() -> None:
    """With 0-d tensors for numbers the same updates are due."""
    look = every(3, ClipNorm(max_norm=1.0))
    state = TrainState(params={"main": {"w": torch.zeros(())}}, grads={"main": {"w": torch.tensor(5.0)}})
    state = fold(look).prepared(state.replace(window=Window(boundary=torch.tensor(True))))
    for count in range(7):
        found = look(state.replace(clock=Clock(step=torch.tensor(count))), STEP, False).state
        assert found.grads["main"]["w"].item() == pytest.approx(1.0 if (count + 1) % 3 == 0 else 5.0)


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "2"])
def test_every_needs_a_whole_number_of_at_least_one(n: Any) -> None:
    """Anything else is a ValidationError."""
    with pytest.raises(ValidationError, match=r"(?s)Every\nn\n"):
        every(n, EMA())


def test_every_counts_validations_after_the_nth_step() -> None:
    """As after a validation: it is due when the latest batch was the n-th step, and never after a skip."""
    look, seen = counted("look", Stage.AFTER_VALIDATION)
    shell = sgd_shell(Weight(), every(2, look) + vetoing([2, 4]))
    for _ in range(6):
        step(shell, 1.0)
        shell.validated({"total_loss": 1.0})
    assert [count for count, _ in seen] == [2, 4]
