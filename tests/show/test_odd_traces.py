"""Traces of odd pipelines: they change nothing, stop nothing, and tell nothing by halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from functrain import Accumulate, ClipNorm, ClipPercentile, Hook, Outcome, Shell, SkipSpikes, Stage, TrainState, show
from functrain._select import Flag
from functrain.show.timeline import spans


class Silent:
    """Judges nothing, and keeps a slot of its own."""

    def init(self, state: TrainState) -> Any:
        """Keep another slot."""
        return {"own": state.clock.batch}

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Do nothing."""
        return Outcome(state, True, state.loss)


class Blind(Silent, SkipSpikes):
    """Inherits a judge."""


class Loose(Silent, ClipPercentile):
    """Inherits a limit."""


def trained(hooks: Any, batches: int = 4) -> Shell:
    """Return a shell that has seen some batches."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks)
    for _ in range(batches):
        with shell.batch():
            shell.update(model(torch.ones(1, 1)).square().mean())
    return shell


@pytest.mark.parametrize("make", [Blind, Loose])
def test_a_class_that_judges_otherwise_than_its_base_is_traced(make: Callable[[], Hook]) -> None:
    """It trains as it does without a trace, whatever its slot holds and whatever it publishes."""
    traced = show.trace(make())
    found, expected = trained(traced), trained(make())
    assert torch.equal(found.state.params["main"]["weight"], expected.state.params["main"]["weight"])
    assert traced.trace.why_skipped(3).startswith("batch 3 was not skipped")


@pytest.mark.parametrize(
    ("limit", "error"), [(0, ValueError), (-1, ValueError), (True, TypeError), (None, TypeError), ("9", TypeError)]
)
def test_a_limit_is_a_number_of_calls(limit: Any, error: type[Exception]) -> None:
    """Anything else is refused where it is written."""
    with pytest.raises(error, match=f"limit must be .*{limit}"):
        show.trace(ClipNorm(max_norm=1.0), limit=limit)


@pytest.mark.parametrize("limit", range(1, 40))
def test_what_is_left_of_a_micro_batch_is_not_told_as_all_of_it(limit: int) -> None:
    """Whichever calls have been forgotten: a lane that is shown is that of a trace without a limit."""
    short, long = (show.trace([Accumulate(every=2), ClipNorm(max_norm=1.0)], limit=each) for each in (limit, 10_000))
    trained(short)
    trained(long)
    assert len(short.trace) >= 1
    assert [each for each in short.trace.records() if each not in long.trace.records()] == [] or len(short.trace) == 1


def test_many_numbers_become_spans() -> None:
    """A hundred thousand of them as well."""
    assert spans(range(100_000)) == "batches 0 to 99999"
