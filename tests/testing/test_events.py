"""Schedules of events: what is drawn, how it prints, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import find, given
from hypothesis.errors import InvalidArgument

from functrain.testing.events import EVENTS, Event, affected, checked_events, schedules


@given(schedules(events=["nan", "flush"], min_size=2, max_size=4))
def test_what_is_drawn(schedule: list[Event]) -> None:
    """Nothing is drawn but "fine" and what was asked for, of the sizes asked for."""
    assert set(schedule) <= {"fine", "nan", "flush"}
    assert 2 <= len(schedule) <= 4


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_is_drawn_and_shrinks_to_itself(event: Event) -> None:
    """Each event can be found, and the smallest schedule that has it holds nothing else."""
    assert find(schedules(), lambda schedule: event in schedule) == [event]


def test_a_schedule_shrinks_to_fine() -> None:
    """Where any event will do, it is the harmless one."""
    assert find(schedules(min_size=3), lambda _: True) == ["fine"] * 3


def test_the_repr_is_the_call() -> None:
    """A strategy prints as it was written."""
    assert repr(schedules(events=["nan"], max_size=3)) == "schedules(events=['nan'], max_size=3)"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"events": ["crash"]}, "unknown event 'crash'; there are"),
    ({"events": "nan"}, "must be a sequence of words"),
    ({"min_size": -1}, "min_size=-1 must be an int of at least 0"),
    ({"min_size": 3, "max_size": 2}, "min_size=3 is larger than max_size=2"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    """An option that cannot work is refused where it is given, with what would work."""
    with pytest.raises(InvalidArgument, match=message):
        schedules(**options)


def test_events_go_by_keyword_only() -> None:
    """Nobody has to remember an order."""
    with pytest.raises(TypeError):
        schedules(["nan"])  # type: ignore[misc]


def test_oracles_refuse_unknown_events() -> None:
    """A schedule written by hand is checked, too."""
    with pytest.raises(ValueError, match="unknown event 'save me'"):
        checked_events(["fine", "save me"])  # type: ignore[list-item]


@pytest.mark.parametrize("event", EVENTS)
def test_what_an_event_does_to_a_batch(event: Event) -> None:
    """Real numbers are multiplied by what the event says; labels, counts and structure stay."""
    batch = {"x": torch.ones(2), "label": torch.tensor([3]), "inner": (torch.ones(1, dtype=torch.complex64), 7)}
    found = affected(batch, event)
    factor = {"tiny": 1e-4, "spike": 1e3, "inf": float("inf"), "nan": float("nan")}.get(event, 1.0)
    assert torch.equal(found["x"].nan_to_num(nan=7.0), torch.full((2,), factor).nan_to_num(nan=7.0))
    assert torch.equal(found["label"], batch["label"])
    assert found["inner"][1] == 7
    assert torch.equal(batch["x"], torch.ones(2))
