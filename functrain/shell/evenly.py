"""As many batches on every rank: one that goes on alone would wait for the others for ever."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from functrain.shell.collectives import Ranks

END: Any = object()
"""What stands behind the last batch."""


def evenly(ranks: Ranks | None, batches: Iterator[Any], length: int | None, done: int) -> Iterator[Any]:
    """Yield batches until a rank has none left, on all ranks alike.

    Where all loaders have a length, they are compared once; else every batch costs a small exchange.

    Args:
        ranks: that train together, if there are several.
        batches: of this rank, or what is left of them.
        length: how many its loader deals in an epoch, if it knows.
        done: how many of those lie behind.

    Raises:
        ValueError: some ranks have no batch at all.

    Warns:
        UserWarning: lengths that differ, so that some batches are left out.

    >>> list(evenly(None, iter("ab"), 2, 0))
    ['a', 'b']
    """
    if ranks is None:
        return batches
    lengths = ranks.objects(length)
    if None in lengths:
        return _until_one_ends(ranks, batches)
    _refuse_nothing([not each for each in lengths])
    if len(set(lengths)) == 1:
        return batches
    if ranks.rank == 0:
        _warn(lengths)
    return _first(batches, min(lengths) - done)


def _refuse_nothing(empty: Sequence[bool]) -> None:
    """Refuse to train on some ranks only."""
    if any(empty) and not all(empty):
        msg = (
            f"rank {empty.index(True)} has no batch in this epoch, and rank {empty.index(False)} has some: they train "
            "together or not at all; give every rank as many, as a DistributedSampler does"
        )
        raise ValueError(msg)


def _warn(lengths: Sequence[int]) -> None:
    least, most = min(lengths), max(lengths)
    msg = (
        f"rank {lengths.index(least)} has {least} batches in this epoch and rank {lengths.index(most)} has {most}: the "
        f"epoch ends for all of them after {least}; give every rank as many, as a DistributedSampler does"
    )
    warnings.warn(msg, stacklevel=7)  # who has called fit


def _first(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield the first batches; one more is asked for, since only then a loader knows that the last is done."""
    for place, batch in enumerate(batches):
        if place >= count:
            return
        yield batch


def _until_one_ends(ranks: Ranks, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches as long as all ranks have one."""
    batch = next(batches, END)
    _refuse_nothing(ranks.objects(batch is END))
    while not bool(ranks.any_of(torch.tensor([batch is END]))):
        yield batch
        batch = next(batches, END)
