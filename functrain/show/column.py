"""One micro-batch or flush of a trace: what the interpreter told, beside what hooks did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from functrain._clock import any_of
from functrain._select import Flag, Number
from functrain._stage import Stage
from functrain._state import EMPTY, TrainState
from functrain.show.event import Event
from functrain.show.kept import kept

Kind: TypeAlias = Literal["setup", "batch", "flush", "epoch"]


@dataclass
class Column:
    """What is known of a stretch of the run; tensors stay tensors until somebody reads it.

    Attributes:
        place: its place among all that were recorded.
        kind: a micro-batch, a flush, the end of an epoch, or what comes before them.
        batch: the micro-batch by the clock; of a flush the one that follows.
        happens: whether a flush had anything to close; the pure engine runs it in any case.
        ended: whether it came to its end; it was given up otherwise.
        updated: whether there was an update; a micro-batch may be left without one.
        loss: what the user computed.
        weight: of the micro-batch in a weighted window.
        boundary: whether it completes a window.
        stepped: whether an optimizer stepped.
        dropped: whether a hook vetoed its backward.
        nothing: the loss while there is none.

    >>> Column(0, "batch", 7).verdict
    'given up'
    """

    place: int
    kind: Kind
    batch: Number = 0
    happens: Flag = True
    ended: bool = False
    updated: bool = True
    loss: Any = float("nan")
    weight: Number | None = None
    boundary: Flag = True
    stepped: Flag = False
    dropped: Flag = False
    nothing: Any = field(default=None, repr=False)

    def end(self, state: TrainState, unit: Number = 1.0) -> None:
        """Note how it ended; weights are in a unit that may be no 1."""
        self.ended, self.updated = True, state.raw_loss is not self.nothing
        self.nothing = None
        self.loss, self.boundary = kept(state.raw_loss), kept(state.window.boundary)
        self.stepped, self.dropped = any_of(state.stepped), any_of(state.vetoes.get(Stage.DO_BACKWARD, EMPTY))
        self.weight = state.window.weight * unit if state.window.weighted is True else None

    @property
    def verdict(self) -> str:
        """What became of it, in words; waits for the device."""
        if not self.ended:
            return "given up"
        if bool(self.stepped):
            return "dropped, stepped" if bool(self.dropped) else "stepped"
        word = "skipped" if bool(self.boundary) else "waited"
        return f"dropped, {word}" if bool(self.dropped) or not self.updated else word

    @property
    def label(self) -> str:
        """What stands above it."""
        return str(int(self.batch)) if self.kind == "batch" else self.kind

    @property
    def closes(self) -> bool:
        """Whether a window ends with it; waits for the device."""
        return self.kind != "batch" or bool(self.boundary)


def last_of(columns: Sequence[Column]) -> dict[int, Column]:
    """Return of each micro-batch the last column: a run may have gone back.

    >>> [each.place for each in last_of([Column(0, "batch", 7), Column(1, "batch", 7)]).values()]
    [1]
    """
    return {int(each.batch): each for each in columns if each.kind == "batch"}


def sorted_out(columns: Sequence[Column], events: Sequence[Event]) -> dict[int, list[Event]]:
    """Return the events of each column, by its place."""
    found: dict[int, list[Event]] = {each.place: [] for each in columns}
    for each in events:
        if each.column in found:
            found[each.column].append(each)
    return found
