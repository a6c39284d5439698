"""The last snapshots of a run, as many as a memory budget holds."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from functrain import _tree
from functrain.shell.snapshot import Snapshot, duplicate


class Taken(NamedTuple):
    """A snapshot, where it was taken, and how many bytes its tensors have."""

    place: int
    snapshot: Snapshot
    size: int


class Past:
    """A ring of snapshots, the oldest of which fall out.

    Args:
        budget: bytes that the tensors in it may have; 0 keeps nothing.

    Raises:
        TypeError, ValueError: a budget that is no number of bytes.

    >>> past = Past(0)
    >>> past.places()
    []
    """

    def __init__(self, budget: int) -> None:
        """Start with nothing."""
        self.budget = _checked(budget)
        self._ring: deque[Taken] = deque()
        self.size = 0

    def take(self, place: int, current: Snapshot) -> None:
        """Copy a snapshot that is on the tensors of the run.

        Raises:
            ValueError: it is larger than the budget; says how many bytes it needs.
        """
        size = size_of(current)
        if size > self.budget:
            raise ValueError(_too_small(size, self.budget))
        while self.size + size > self.budget:
            self.size -= self._ring.popleft().size
        self._ring.append(Taken(place, duplicate(current), size))
        self.size += size

    def places(self) -> list[int]:
        """Return where the snapshots were taken."""
        return [each.place for each in self._ring]

    def get(self, place: int) -> Snapshot | None:
        """Return the snapshot that was taken at a place, if it is still there."""
        return next((each.snapshot for each in self._ring if each.place == place), None)


def size_of(taken: Snapshot) -> int:
    """Return how many bytes the tensors of a snapshot have.

    >>> from functrain import TrainState
    >>> size_of(Snapshot(TrainState(params={"main": {"w": torch.ones(10)}}), {}, {}, {})) - size_of(
    ...     Snapshot(TrainState(), {}, {}, {}))
    40
    """
    trees: tuple[Any, ...] = (taken.state, taken.optimizers, taken.schedulers, taken.random)
    return sum(_bytes(leaf) for leaf in _tree.leaves(trees) if isinstance(leaf, Tensor))


def _bytes(leaf: Tensor) -> int:
    """Return the bytes of a tensor; of a sparse one those of its parts."""
    if leaf.layout is torch.sparse_coo:
        return leaf._indices().nbytes + leaf._values().nbytes  # noqa: SLF001 - without making it coalesced
    return leaf.numel() * leaf.element_size()


def _checked(budget: Any) -> int:
    """Return a budget in bytes."""
    if isinstance(budget, bool) or not isinstance(budget, int):
        msg = f"budget must be a number of bytes, or None for no snapshots; got {budget!r}"
        raise TypeError(msg)
    if budget < 0:
        msg = f"budget must be at least 0 bytes, got {budget}"
        raise ValueError(msg)
    return budget


def _too_small(size: int, budget: int) -> str:
    return (
        f"one snapshot of this run has {size:,} bytes (weights, gradients, optimizers, slots of the hooks, the batch), "
        f"and the budget is {budget:,}: write show.trace(hooks, budget={size * 10:_}) to keep about ten, or leave "
        "budget out to keep none"
    )
