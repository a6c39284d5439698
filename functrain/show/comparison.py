"""A recorded run beside its replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from functrain import _tree
from functrain._state import TrainState
from functrain.show.column import Column
from functrain.show.lanes import WHOLE, lanes_grid
from functrain.show.node import Grid, Panels
from functrain.show.timeline import Trace
from functrain.show.view import View, safely

OTHERWISE = 8
"""So many micro-batches that came out otherwise are shown of many."""

HEADS = ("batch", "recorded", "replayed", "recorded loss", "replayed loss", "distance")


class Step(NamedTuple):
    """A micro-batch in both runs.

    Attributes:
        recorded: as it was.
        replayed: as it came out again.
        distance: between the parameters of the two as it began.

    >>> Step(Column(1, "batch", 7), Column(1, "batch", 7), torch.tensor(0.0)).to_record()["batch"]
    7
    """

    recorded: Column
    replayed: Column
    distance: Tensor

    def to_record(self) -> dict[str, Any]:
        """Return it as numbers and words; waits for the device."""
        return {
            "batch": int(self.recorded.batch),
            "recorded": self.recorded.verdict,
            "replayed": self.replayed.verdict,
            "recorded_loss": float(self.recorded.loss),
            "replayed_loss": float(self.replayed.loss),
            "distance": float(self.distance),
        }


class Replay:
    """What :func:`replay` returns: the two traces side by side, and batch by batch what came of them.

    Prints as text, shows as HTML.

    Args:
        recorded: the trace that was replayed.
        trace: that of the replay; with a budget of its own it has the states, too.
        steps: the micro-batches in both.
        state: a copy of the state at the end of the replay.
        limits: the skip limits that were reached, in words.

    >>> Replay(Trace((), 10), Trace((), 10), [], TrainState(), []).to_records()
    []
    """

    def __init__(
        self, recorded: Trace, trace: Trace, steps: Sequence[Step], state: TrainState, limits: Sequence[str]
    ) -> None:
        """Keep all of it."""
        self.recorded, self.trace, self.steps, self.state = recorded, trace, list(steps), state
        self.limits = list(limits)

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dict per micro-batch, ready for a data frame: verdicts, losses and the distance as it began."""
        return [each.to_record() for each in self.steps]

    def view(self) -> View:
        """Return the two traces and the table; never raises."""
        return safely(self._panels)

    def _panels(self) -> Panels:
        first = self.steps[0].recorded.place if self.steps else 0
        was = self.recorded.lanes([each for each in self.recorded.columns() if each.place >= first])
        now = self.trace.lanes([each for each in self.trace.columns() if each.kind != "setup"])
        return Panels(
            (
                ("recorded", lanes_grid(self.recorded.hooks, was)),
                ("replayed", lanes_grid(self.trace.hooks, now)),
                ("batch by batch", self._table()),
            )
        )

    def _table(self) -> Grid:
        """Return a row for each micro-batch; of many the first, the last and those that came out otherwise."""
        records = self.to_records()
        rows = [_row(record) for record in records]
        chosen = _chosen([record["recorded"] != record["replayed"] for record in records])
        shown = [rows[place] if place is not None else ("...",) * len(HEADS) for place in chosen]
        warnings = tuple(f"in the replay: {each}" for each in self.limits)
        return Grid(HEADS, tuple(shown), warnings, notes=(_parting(records),))

    def __str__(self) -> str:
        """Return all of it as text."""
        return str(self.view())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return all of it as HTML."""
        return self.view().html()


def distance(ours: Any, theirs: Any) -> Tensor:
    """Return the norm of the difference of two trees of parameters, NaN equal to NaN, without waiting for the device.

    >>> distance({"w": torch.zeros(2)}, {"w": torch.tensor([3.0, 4.0])})
    tensor(5., dtype=torch.float64)
    """
    pairs = zip(_tree.leaves(ours), _tree.leaves(theirs), strict=True)
    with torch.no_grad():
        norms: list[Tensor] = [torch.linalg.vector_norm(_apart(one, other)) for one, other in pairs]
        together = [each.to(norms[0].device) for each in norms] or [ZERO]
        return cast("Tensor", torch.linalg.vector_norm(torch.stack(together)))


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """Return how far numbers are apart; nowhere where both are the same, which may be infinite or NaN."""
    equal = (one == other) | (one.isnan() & other.isnan())
    return torch.where(equal, 0.0, (one - other).abs().double())


ZERO = torch.zeros((), dtype=torch.float64, device="cpu")


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    """Return a record as texts."""
    numbers = (f"{record[name]:.4g}" for name in ("recorded_loss", "replayed_loss", "distance"))
    return str(record["batch"]), record["recorded"], record["replayed"], *numbers


def _chosen(differs: Sequence[bool]) -> list[int | None]:
    """Return which rows to show, None for a gap."""
    count = len(differs)
    if count <= WHOLE:
        return [*range(count)]
    places = {*range(4), *range(count - 4, count), *[place for place, each in enumerate(differs) if each][:OTHERWISE]}
    places |= {place + 1 for place in places if place + 2 in places}  # a gap of one row is no gap
    found: list[int | None] = []
    for place in sorted(places):
        found += [place] if place - 1 in places or not place else [None, place]
    return found


def _parting(records: Sequence[dict[str, Any]]) -> str:
    """Say where the two runs part."""
    after = [*(each["distance"] for each in records[1:]), 0.0]
    for each, apart in zip(records, after, strict=True):
        if apart != 0.0 or each["recorded"] != each["replayed"] or _differ(each):
            largest = max((record["distance"] for record in records), key=lambda each: (each != each, each))  # noqa: PLR0124 - NaN
            return f"the two part in batch {each['batch']}; the largest distance is {largest:.4g}"
    return f"the two agree in all {len(records)} micro-batches"


def _differ(record: dict[str, Any]) -> bool:
    """Compare the two losses of a micro-batch, NaN equal to NaN."""
    return repr(record["recorded_loss"]) != repr(record["replayed_loss"])
