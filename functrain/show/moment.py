"""One micro-batch of a trace, with the state that it began in."""

from __future__ import annotations

from collections.abc import Sequence

from functrain._state import TrainState
from functrain.shell.snapshot import Snapshot
from functrain.show.event import Event
from functrain.show.node import Grid
from functrain.show.reason import reason
from functrain.show.view import View, safely


class Moment:
    """What ``trace[17]`` returns: the calls of a micro-batch and, within the budget, the state that it began in.

    Args:
        batch: the micro-batch.
        verdict: what became of it.
        events: its calls, in order.
        snapshot: taken as it began.
        others: of which micro-batches there are snapshots, in words.

    >>> Moment(17, "stepped", [], None, "batches 20 to 24").state
    Traceback (most recent call last):
    ...
    LookupError: the state of batch 17 is not kept; there are snapshots of batches 20 to 24: ...
    """

    def __init__(
        self, batch: int, verdict: str, events: Sequence[Event], snapshot: Snapshot | None, others: str
    ) -> None:
        """Keep all of it."""
        self.batch, self.verdict, self.events = batch, verdict, list(events)
        self._snapshot, self._others = snapshot, others

    @property
    def snapshot(self) -> Snapshot:
        """Everything as it was when the first hook was asked at BEFORE_BATCH; a shell takes it in ``restore``.

        Raises:
            LookupError: it has fallen out, or there is no budget; says which there are.
        """
        if self._snapshot is None:
            msg = (
                f"the state of batch {self.batch} is not kept; there are snapshots of {self._others}: "
                "write show.trace(hooks, budget=...) with more bytes to keep more of them"
            )
            raise LookupError(msg)
        return self._snapshot

    @property
    def state(self) -> TrainState:
        """The state of that moment, a copy, with the micro-batch itself in ``state.batch``.

        Of the pure engine it holds the optimizers' state, too; of a shell that is in ``snapshot.optimizers``.

        Raises:
            LookupError: as for :attr:`snapshot`.
        """
        return self.snapshot.state

    def view(self) -> View:
        """Return the calls as a view; never raises."""
        return safely(self._grid)

    def _grid(self) -> Grid:
        """Return a row for each call."""
        rows = [
            (each.stage.name, each.hook, str(bool(each.saw)), str(bool(each.proceed)), str(each.changed_loss))
            for each in self.events
        ]
        heads = ("stage", "hook", "saw will_skip", "proceeds", "changed the loss")
        return Grid(heads, tuple(rows), notes=(f"{reason(self.batch, self.events)}; {self.verdict}",))

    def __str__(self) -> str:
        """Return the calls as text."""
        return str(self.view())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the calls as HTML."""
        return self.view().html()
