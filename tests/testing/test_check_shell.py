"""check_shell: the laws of whole runs, on runs that keep them and on runs that do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from functrain import EMA, Accumulate, ClipNorm, Hook, Outcome, SkipNonFinite, Stage, TrainState
from functrain.testing import LawViolation, Training, check_shell


def training(*hooks: Any, model: Any = None) -> Training:
    """Return a small run."""

    def loss_fn(module: nn.Module, x: Tensor) -> Tensor:
        return module(x).square().mean()

    return Training(
        model=model or (lambda: nn.Linear(2, 1)),
        loss_fn=loss_fn,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        batches=[torch.eye(2), torch.ones(3, 2)],
        hooks=hooks,
    )


def test_a_run_that_keeps_every_law() -> None:
    """All four are checked on every schedule."""
    report = check_shell(training(Accumulate(every=2), ClipNorm(max_norm=1.0), SkipNonFinite(), EMA()), max_examples=4)
    assert {row.status for row in report} == {"kept"}
    assert {row.examples for row in report} == {4}


class Remembering(Hook):
    """A hook that keeps on the object what belongs into the slot."""

    stages: Any = frozenset({Stage.DO_BACKWARD})
    held: Any = None

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Let the loss grow from call to call."""
        self.held.append(1)
        return Outcome(state, True, state.loss * len(self.held))


def test_a_run_that_depends_on_what_was_before() -> None:
    """What is not in the state is not restored, and the schedule that shows it is short."""
    with pytest.raises(LawViolation) as caught:
        check_shell(training(Remembering(held=[])), max_examples=4, seed=0)
    assert caught.value.law.name == "L9 round trip"
    assert len(caught.value.scene.schedule) <= 2
    assert "schedule=" in str(caught.value) or caught.value.scene.schedule == ()


def test_a_report_can_be_had_of_a_broken_run() -> None:
    """Without an error."""
    report = check_shell(training(Remembering(held=[])), max_examples=2, seed=0, if_broken="return")
    assert "L9 round trip" in report.broken
