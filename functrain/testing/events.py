"""What may happen to a training run, as a list of words that can be drawn, printed and run again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from torch import Tensor

from functrain._tree import map_leaves
from functrain.testing.checking import check_options, strategy

Event: TypeAlias = Literal["fine", "tiny", "spike", "inf", "nan", "drop", "flush", "save", "restore", "swap"]
"""One thing that happens to a run; see :data:`EVENTS`."""

EVENTS: tuple[Event, ...] = get_args(Event)
"""All events, the harmless ones first, which is where failures shrink to.

``fine``, ``tiny``, ``spike``, ``inf`` and ``nan`` present a micro-batch, its numbers multiplied by :data:`FACTORS`;
``drop`` presents one that is vetoed at DO_BACKWARD; ``flush`` ends the epoch; ``save`` and ``restore`` go back to what
was saved last; ``swap`` lets each run go on in the other interpreter.
"""

FINE: tuple[Event, ...] = ("fine",)

FACTORS: dict[Event, float] = {"tiny": 1e-4, "spike": 1e3, "inf": float("inf"), "nan": float("nan")}
"""What the numbers of a micro-batch are multiplied by."""


def _check_schedules(*, events: Sequence[Event] = EVENTS, **sizes: Any) -> None:
    """Refuse arguments of :func:`schedules`."""
    check_options(**sizes)
    try:
        checked_events(events)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(str(error)) from None


@strategy(_check_schedules)
def schedules(
    draw: st.DrawFn, *, events: Sequence[Event] = EVENTS, min_size: int = 1, max_size: int = 10
) -> list[Event]:
    """Draw a list of events, about half of them ``"fine"``, which is where failures shrink to.

    Args:
        draw: given by Hypothesis.
        events: those that may be drawn besides "fine".
        min_size: at least so many.
        max_size: at most so many.

    Raises:
        InvalidArgument: an unknown event, a size that is no size, or a minimum above the maximum.

    >>> schedules(events=["nan", "flush"], max_size=3)
    schedules(events=['nan', 'flush'], max_size=3)
    """
    return draw(st.lists(st.sampled_from(FINE) | st.sampled_from(events or FINE), min_size=min_size, max_size=max_size))


def checked_events(events: Sequence[Event]) -> Sequence[Event]:
    """Return events as they are, or raise.

    Raises:
        TypeError: a string, which would be read letter by letter.
        ValueError: an unknown event; lists those there are.

    >>> checked_events(["fine", "crash"])
    Traceback (most recent call last):
    ...
    ValueError: unknown event 'crash'; there are ['fine', 'tiny', 'spike', ...]
    """
    if isinstance(events, str):
        msg = f"events must be a sequence of words, got the string {events!r}; write [{events!r}]"
        raise TypeError(msg)
    for event in events:
        if event not in EVENTS:
            msg = f"unknown event {event!r}; there are {list(EVENTS)}"
            raise ValueError(msg)
    return events


def affected(batch: Any, event: Event) -> Any:
    """Return a micro-batch in which an event happens: every real number multiplied, counts and labels as they are.

    >>> import torch
    >>> affected({"x": torch.ones(1), "label": torch.ones(1, dtype=torch.int64)}, "spike")
    {'x': tensor([1000.]), 'label': tensor([1])}
    """
    return map_leaves(partial(_times, FACTORS[event]), batch) if event in FACTORS else batch


def _times(factor: float, leaf: Any) -> Any:
    real = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return leaf * factor if real else leaf
