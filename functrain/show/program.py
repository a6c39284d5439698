"""What a replay runs: the last stretch of a trace of which every micro-batch has its snapshot."""

from __future__ import annotations

from typing import NamedTuple

from functrain.shell.snapshot import Snapshot
from functrain.show.column import Column
from functrain.show.timeline import Trace, spans


class Act(NamedTuple):
    """A micro-batch to be run again, with its snapshot; or, without one, the end of an epoch.

    >>> Act(Column(3, "epoch"), None).snapshot is None
    True
    """

    column: Column
    snapshot: Snapshot | None


def program(trace: Trace, start: int | None = None) -> list[Act]:
    """Return what to run, from a micro-batch on; by default from the first that is kept.

    Micro-batches that were given up are left out; of a run that went back, what it did since.

    Raises:
        LookupError: nothing is kept, or not this micro-batch; says which are.

    >>> program(Trace(("clip",), 10))
    Traceback (most recent call last):
    ...
    LookupError: the trace keeps no snapshot to start from: write show.trace(hooks, budget=...) with bytes to keep some
    """
    acts = _chain(trace)
    batches = [int(each.column.batch) for each in acts if each.snapshot]
    if not batches:
        msg = "the trace keeps no snapshot to start from: write show.trace(hooks, budget=...) with bytes to keep some"
        raise LookupError(msg)
    if start is not None and start not in batches:
        msg = f"there is no snapshot of batch {start} to start from; a replay may start from {spans(batches)}"
        raise LookupError(msg)
    first = batches[0] if start is None else start
    begin = next(place for place, each in enumerate(acts) if each.snapshot and int(each.column.batch) == first)
    return acts[begin:]


def _chain(trace: Trace) -> list[Act]:
    """Return micro-batches that follow each other, back from the last one, and the ends of epochs between them."""
    found: list[Act] = []
    following: int | None = None
    for column in reversed(trace.columns()):
        if column.kind == "epoch":
            found.append(Act(column, None))
        elif column.kind == "batch" and column.ended:
            taken, batch = trace.past.get(column.place), int(column.batch)
            if taken is None or following not in (None, batch + 1):
                break
            found.append(Act(column, taken))
            following = batch
    return found[::-1]
