"""Bad batches, put in on purpose so that vetoes are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from functrain.demo.digits import Batch

Poison: TypeAlias = Callable[[Batch], Batch]


SHORTEST = 10
"""Windows that a run must have, so that three can be spoiled and the rest still train."""


class RunTooShortError(ValueError):
    """A run has so few windows that spoiling three of them would leave no run.

    >>> issubclass(RunTooShortError, ValueError)
    True
    """


class Batches(Protocol):
    """What can be poisoned: sized, and iterated once per epoch."""

    def __len__(self) -> int:
        """Return how many batches one epoch has."""
        ...

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        """Deal the batches of one epoch."""
        ...


def broken_pixel(batch: Batch) -> Batch:
    """Set a single pixel to NaN; BatchNorm spreads it over the whole batch.

    >>> import torch
    >>> images, labels = broken_pixel((torch.zeros(2, 1, 8, 8), torch.zeros(2)))
    >>> int(images.isnan().sum())
    1
    """
    images, labels = batch[0].clone(), batch[1]
    images[0, 0, 0, 0] = float("nan")
    return images, labels


def wrong_labels(batch: Batch) -> Batch:
    """Label every digit as the next one: nothing is NaN, but every answer that was right is punished.

    >>> import torch
    >>> wrong_labels((torch.zeros(2), torch.tensor([3, 9])))[1]
    tensor([4, 0])
    """
    images, labels = batch
    return images, (labels + 1) % 10


class Poisoned:
    """Batches of which some, by their number in the whole run, are poisoned on the way out.

    >>> batches = Poisoned([("one", 1), ("two", 2)], {2: lambda batch: ("bad", 1)})
    >>> [list(batches) for epoch in range(2)]
    [[('one', 1), ('two', 2)], [('bad', 1), ('two', 2)]]
    """

    def __init__(self, batches: Batches, plan: Mapping[int, Poison]) -> None:
        self.batches = batches
        self.plan = plan
        self.dealt = 0
        self._order = getattr(batches, "generator", None)
        self._start, self._skip = self._now(), 0

    @property
    def sampler(self) -> Any:
        """What decides the order, if something does; ``fit`` tells it the epoch."""
        return getattr(self.batches, "sampler", None)

    def _now(self) -> Tensor | None:
        return None if self._order is None else self._order.get_state()

    def __len__(self) -> int:
        """Return how many batches one epoch has, as before."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        """Deal one epoch, or what is left of one."""
        self._start, skip, self._skip = self._now(), self._skip, 0
        for images, labels in islice(self.batches, skip, None):
            poison = self.plan.get(self.dealt, lambda batch: batch)
            self.dealt += 1
            yield poison((images, labels))

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches were dealt, and the generator as it was at the start of this epoch."""
        between_epochs = self.dealt % len(self) == 0
        return {"dealt": self.dealt, "generator": self._now() if between_epochs else self._start}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Go on from there: the order of the epoch is drawn again, and what was dealt of it is left out."""
        self.dealt, self._skip = stored["dealt"], stored["dealt"] % len(self)
        if self._order is not None:
            self._order.set_state(stored["generator"])


def poison_plan(batches: int, epochs: int, accumulate: int) -> dict[int, Poison]:
    """Choose the victims among the windows of a run, from its middle on, when there is something to spoil.

    One window has a broken first micro-batch, one has only wrong labels, one has only broken micro-batches.

    Args:
        batches: in one epoch.
        epochs: of the run.
        accumulate: micro-batches in one window; the last window of an epoch may have fewer.

    Raises:
        RunTooShortError: fewer than ten windows.

    >>> plan = poison_plan(batches=10, epochs=2, accumulate=2)
    >>> {number: poison.__name__ for number, poison in plan.items()}
    {10: 'broken_pixel', 12: 'wrong_labels', 13: 'wrong_labels', 16: 'broken_pixel', 17: 'broken_pixel'}
    """
    windows = [
        range(epoch * batches + first, epoch * batches + min(first + accumulate, batches))
        for epoch in range(epochs)
        for first in range(0, batches, accumulate)
    ]
    if (found := len(windows)) < SHORTEST:
        raise RunTooShortError(
            f"the run has {found} optimizer steps and needs {SHORTEST}: more epochs, or less to accumulate"
        )
    one, two, three = windows[found // 2], windows[found * 6 // 10], windows[found * 8 // 10]
    return {one[0]: broken_pixel, **dict.fromkeys(two, wrong_labels), **dict.fromkeys(three, broken_pixel)}
