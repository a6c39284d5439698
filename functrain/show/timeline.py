"""What a traced pipeline has done so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from functrain._fold import Occasion, Pipeline, fold
from functrain._hook import Hook
from functrain._select import Flag
from functrain._stage import Stage
from functrain._state import TrainState
from functrain.shell.snapshot import Snapshot, random_states
from functrain.show.column import Column, last_of, sorted_out
from functrain.show.event import Event
from functrain.show.kept import kept, plain
from functrain.show.lanes import Lane, lanes_grid, windows_grid
from functrain.show.limit import limit_of
from functrain.show.moment import Moment
from functrain.show.node import Grid
from functrain.show.outcome import MARKS, outcome
from functrain.show.past import Past
from functrain.show.reason import reason
from functrain.show.view import View, safely


class Trace:
    """The calls of a run, hooks as lanes and micro-batches along x; prints as text, shows as HTML.

    x ran, s saw ``will_skip``, w waited in a window, l changed the loss, v vetoed, d dropped. A long trace is folded.
    What is called between two micro-batches counts to the first. Reading it waits for the device; recording never does.

    Args:
        hooks: names of the lanes.
        limit: how many calls to keep; older ones are forgotten.
        budget: bytes of snapshots to keep.
        pipeline: whose calls they are.

    Attributes:
        events: the calls, the oldest first.
        past: the snapshots.
        in_lanes: calls under ``vmap``, which are not recorded.

    >>> Trace(("clip",), 10).why_skipped(3)
    'batch 3 is not in the trace'
    """

    def __init__(self, hooks: tuple[str, ...], limit: int, budget: int = 0, pipeline: Pipeline | None = None) -> None:
        """Start with nothing."""
        self.hooks = hooks
        self.pipeline = fold() if pipeline is None else pipeline
        self.events: deque[Event] = deque(maxlen=limit)
        self.past = Past(budget)
        self.in_lanes = 0
        self._columns: deque[Column] = deque([Column(0, "setup")], maxlen=limit)
        self._open = self._columns[0]
        self._count, self._lost = 0, -1

    def notice(
        self, occasion: Occasion, state: TrainState, take: Callable[[], Any] | None, accumulate: Hook | None
    ) -> None:
        """Note where the interpreter is; of a micro-batch that begins take a snapshot, if there is a budget."""
        if occasion == "end":
            unit = 1.0 if accumulate is None or not state.scaler else state.hooks[accumulate.name].get("unit", 1.0)
            self._open.end(state, unit)
            return
        self._count += 1
        column = Column(self._count, occasion, kept(state.clock.batch), nothing=state.raw_loss)
        if occasion == "batch" and self.past.budget:
            self.past.take(self._count, take() if take else Snapshot(state, {}, {}, random_states()))
        if occasion == "flush" and accumulate is not None:
            column.happens = state.hooks[accumulate.name]["position"] > 0
        self._columns.append(column)
        if occasion != "epoch":
            self._open = column

    def record(
        self, member: Hook, stage: Stage, saw: Flag, states: tuple[TrainState, TrainState], proceed: Flag
    ) -> None:
        """Keep of a call references, and a loss without its graph."""
        before, after = states
        changed = stage is Stage.DO_BACKWARD and after.loss is not before.loss
        limit = limit_of(member, stage, before, after, saw)
        batch = self._open.batch if self._count else after.clock.batch
        loss, boundary = plain(after.raw_loss), plain(after.window.boundary)
        seen = Event(
            batch, member.name, stage, plain(saw), plain(proceed), changed, boundary, loss, after.metrics, limit
        )
        if len(self.events) == self.events.maxlen:
            self._lost = self.events[0].column
        self.events.append(seen._replace(column=self._open.place))

    @property
    def latest(self) -> Column:
        """The micro-batch or flush that was recorded last."""
        return self._open

    def columns(self) -> list[Column]:
        """Return what there is to see, the oldest first: micro-batches, flushes and epochs; waits for the device.

        One whose first calls have been forgotten is left out, unless it is the only one: it would tell half of it.
        """
        first = min(self._lost + 1, self._open.place)
        return [each for each in self._columns if each.place >= first and bool(each.happens)]

    def batches(self) -> dict[int, list[Event]]:
        """Return the calls by micro-batch; of one that was run again, those of the last time."""
        columns = self.columns()
        events = sorted_out(columns, self.events)
        return {batch: events[each.place] for batch, each in last_of(columns).items()}

    def __getitem__(self, batch: int) -> Moment:
        """Return what there is of a micro-batch: its calls and, within the budget, its state as it began.

        Raises:
            KeyError: it is not in the trace; says which are.
        """
        columns = self.columns()
        found = last_of(columns)
        if batch not in found:
            raise KeyError(f"batch {batch} is not in the trace; it holds {spans(list(found))}")
        place = found[batch].place
        events = sorted_out([found[batch]], self.events)[place]
        return Moment(batch, found[batch].verdict, events, self.past.get(place), spans(self.kept_batches()))

    def __iter__(self) -> Iterator[int]:
        """Yield the micro-batches that are in the trace."""
        return iter(last_of(self.columns()))

    def __len__(self) -> int:
        """Return how many micro-batches are in the trace."""
        return len(last_of(self.columns()))

    def kept_batches(self) -> list[int]:
        """Return the micro-batches whose snapshots are kept."""
        places = set(self.past.places())
        return [int(each.batch) for each in last_of(list(self._columns)).values() if each.place in places]

    def records(self) -> list[dict[str, Any]]:
        """Return one dict per micro-batch and hook, ready for a data frame."""
        lanes = [(batch, name, _of(events, name)) for batch, events in self.batches().items() for name in self.hooks]
        return [{"batch": batch, "hook": name, "outcome": outcome(own)} for batch, name, own in lanes if own]

    def why_skipped(self, batch: int) -> str:
        """Return one sentence with numbers; of a limit that was exceeded both what was found and what was allowed."""
        return reason(batch, self.batches().get(batch, []))

    def lanes(self, columns: Sequence[Column]) -> list[Lane]:
        """Return what each hook did in some columns; those in which nobody was called are no micro-batches' only."""
        events = sorted_out(columns, self.events)
        found = [Lane(each, tuple(self._mark(events[each.place], name) for name in self.hooks)) for each in columns]
        return [each for each in found if each.column.kind in ("batch", "flush") or any(m != "." for m in each.marks)]

    @staticmethod
    def _mark(events: Sequence[Event], hook: str) -> str:
        own = _of(events, hook)
        return MARKS[outcome(own)] if own else "."

    def view(self) -> View:
        """Return the lanes as a view, folded where they are many; never raises."""
        return safely(lambda: self._noted(lanes_grid(self.hooks, self.lanes(self.columns()))))

    def windows(self) -> View:
        """Return the lanes with the micro-batches of each window side by side; never raises.

        >>> from functrain import Accumulate, Shell, show
        >>> import torch
        >>> traced, model = show.trace(Accumulate(every=2)), torch.nn.Linear(1, 1)
        >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), traced)
        >>> for _ in range(4):
        ...     with shell.batch():
        ...         shell.update(model(torch.ones(1, 1)).square().mean())
        >>> traced.trace.windows()
        window      0-1  2-3
        ----------  ---  ---
        accumulate  wx   wx
        """
        return safely(lambda: self._noted(windows_grid(self.hooks, self.lanes(self.columns()))))

    def _noted(self, grid: Grid) -> Grid:
        """Return a grid with a sentence on what could not be recorded."""
        if self.in_lanes:
            return grid.with_warnings(LANES.format(self.in_lanes))
        return grid if len(grid.heads) > 1 else replace(grid, notes=(NOTHING,))

    def __str__(self) -> str:
        """Return the lanes as text."""
        return str(self.view())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the lanes as HTML."""
        return self.view().html()


NOTHING = "no micro-batch is recorded; of a compiled step none is"
LANES = (
    "{} calls in lanes of vmap are not recorded, since a lane has no value of its own there; "
    "trace one lane by itself to see it"
)


def _of(events: Sequence[Event], hook: str) -> list[Event]:
    return [each for each in events if each.hook == hook]


def spans(batches: Sequence[int]) -> str:
    """Return numbers as spans.

    >>> spans([0, 1, 2, 7]), spans([])
    ('batches 0 to 2, 7', 'no batches')
    """
    if not batches:
        return "no batches"
    there = set(batches)
    firsts = [each for each in batches if each - 1 not in there]
    lasts = [each for each in batches if each + 1 not in there]
    pairs = zip(firsts, lasts, strict=True)
    return f"batches {', '.join(str(a) if a == b else f'{a} to {b}' for a, b in pairs)}"
