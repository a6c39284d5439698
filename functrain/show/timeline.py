"""What a traced pipeline has done so far."""

from __future__ import annotations

from collections import deque
from typing import Any

from functrain.show.event import Event
from functrain.show.node import Grid
from functrain.show.outcome import MARKS, outcome
from functrain.show.reason import reason
from functrain.show.view import View, safely


class Trace:
    """The calls of a run, hooks as lanes and micro-batches along x; prints as text, shows as HTML.

    x ran, s saw ``will_skip``, w waited in a window, l changed the loss, v vetoed, d dropped. A flush counts to the
    micro-batch that follows it. Reading it waits for the device; recording never does.

    Args:
        hooks: names of the lanes.
        limit: how many calls to keep; older ones are forgotten.

    >>> Trace(("clip",), 10).why_skipped(3)
    'batch 3 is not in the trace'
    """

    def __init__(self, hooks: tuple[str, ...], limit: int) -> None:
        """Start with nothing."""
        self.hooks = hooks
        self.events: deque[Event] = deque(maxlen=limit)

    def batches(self) -> dict[int, list[Event]]:
        """Return the calls by micro-batch."""
        found: dict[int, list[Event]] = {}
        for each in self.events:
            found.setdefault(int(each.batch), []).append(each)
        return found

    def records(self) -> list[dict[str, Any]]:
        """Return one dict per micro-batch and hook, ready for a data frame."""
        lanes = [(batch, name, _of(events, name)) for batch, events in self.batches().items() for name in self.hooks]
        return [{"batch": batch, "hook": name, "outcome": outcome(own)} for batch, name, own in lanes if own]

    def why_skipped(self, batch: int) -> str:
        """Return one sentence with numbers."""
        return reason(batch, self.batches().get(batch, []))

    def view(self) -> View:
        """Return the lanes as a view; never raises."""
        return safely(self._grid)

    def _grid(self) -> Grid:
        """Return a row for each hook and a column for each micro-batch."""
        batches = self.batches()
        cells = [(name, *(_mark(_of(events, name)) for events in batches.values())) for name in self.hooks]
        return Grid(("batch", *map(str, batches)), tuple(cells), colours=COLOURS)

    def __str__(self) -> str:
        """Return the lanes as text."""
        return str(self.view())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the lanes as HTML."""
        return self.view().html()


COLOURS = {"x": "#4a9d5b", "s": "#9a9a9a", "w": "#6b8fb8", "l": "#8a63b8", "v": "#d9822b", "d": "#c8374a"}
"""Legible under white letters, in light and in dark."""


def _of(events: list[Event], hook: str) -> list[Event]:
    return [each for each in events if each.hook == hook]


def _mark(events: list[Event]) -> str:
    return MARKS[outcome(events)] if events else "."
