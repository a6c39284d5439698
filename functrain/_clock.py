"""The counters of a run."""

from __future__ import annotations

from dataclasses import field

from functrain import _tree
from functrain._frozen_map import wrap
from functrain._select import Flag, Number, both, either, equal, negate, select


@_tree.record()
class Clock(_tree.Record):
    """What has been counted so far; it advances after the AFTER_OPTIMIZER_STEP fold, so there ``step`` is still old.

    Attributes:
        step: executed updates, in which at least one optimizer stepped.
        batch: micro-batches presented.
        epoch: epochs completed.
        epoch_batch: micro-batches presented in this epoch.
        skipped: boundaries at which no optimizer stepped.
        consecutive_skips: those since the last step.
        skipping_since: the batch of the first of them; -1 when the last boundary stepped.
        optimizer_steps: steps of each optimizer, by its key.

    >>> clock = Clock(optimizer_steps=_tree.FrozenMap({"main": 0}))
    >>> clock.updated(True, _tree.FrozenMap({"main": True}), True).step
    1
    """

    step: Number = 0
    batch: Number = 0
    epoch: Number = 0
    epoch_batch: Number = 0
    skipped: Number = 0
    consecutive_skips: Number = 0
    skipping_since: Number = -1
    optimizer_steps: _tree.FrozenMap[Number] = field(default_factory=_tree.FrozenMap[Number])

    def updated(self, boundary: Flag, stepped: _tree.FrozenMap[Flag], ran: Flag, presented: int = 1) -> Clock:
        """Return the clock after an update: a step, a skip, or, inside a window, neither.

        ``presented`` micro-batches have come with it; the flush of a partial window presents none.
        """
        counts = {
            "batch": self.batch + presented,
            "epoch_batch": self.epoch_batch + presented,
            "optimizer_steps": wrap({key: count + stepped[key] for key, count in self.optimizer_steps.items()}),
        }
        if ran is True:
            return self.replace(step=self.step + 1, consecutive_skips=0, skipping_since=-1, **counts)
        skip = both(boundary, negate(ran))
        started = both(skip, equal(self.consecutive_skips, 0))
        since = select(started, lambda: self.batch, lambda: self.skipping_since)
        return self.replace(
            step=self.step + ran,
            skipped=self.skipped + skip,
            consecutive_skips=select(ran, lambda: 0, lambda: self.consecutive_skips + skip),
            skipping_since=select(ran, lambda: -1, lambda: since),
            **counts,
        )

    def next_epoch(self) -> Clock:
        """Return the clock at the start of the next epoch."""
        return self.replace(epoch=self.epoch + 1, epoch_batch=0)


def any_of(flags: _tree.FrozenMap[Flag]) -> Flag:
    """Return whether any flag is set, without a sync.

    >>> any_of(_tree.FrozenMap({"a": False, "b": True}))
    True
    """
    found: Flag = False
    for flag in flags.values():
        if flag is True:
            return True
        found = either(found, flag)
    return found
