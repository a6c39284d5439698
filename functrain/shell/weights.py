"""Weights of micro-batches that are given to ``update``: where they may come from, and when they are refused."""

from __future__ import annotations

from functrain._select import Number
from functrain._verdict import checked_weight
from functrain._window import Window
from functrain.shell.driver import Driver


def weighed_window(driver: Driver, weight: Number | None) -> Window:
    """Return the window with the weight of this micro-batch, if one is given.

    Raises:
        ValueError: a weight that cannot be taken here, or none in a window that has them.
        TypeError: a weight that is no number.
    """
    window = driver.state.window
    if weight is None:
        if window.entered and window.weighted and getattr(driver.accumulate, "weight", None) is None:
            msg = "this window was opened with weights; give every micro-batch of it one: update(loss, weight=)"
            raise ValueError(msg)
        return window
    checked_weight(weight)
    if (reason := _refusal(driver)) is not None:
        raise ValueError(reason)
    return window.weighed(weight)


def _refusal(driver: Driver) -> str | None:
    """Say why a weight cannot be taken here, or None."""
    accumulate, window = driver.accumulate, driver.state.window
    if accumulate is None:
        return "weight= needs Accumulate in the pipeline, which divides by the sum of weights"
    if getattr(accumulate, "weight", None) is not None:
        return "weight= beside Accumulate(weight=...): weights may come from one source only"
    if window.entered and not window.weighted:
        return "this window was opened without weights; give every micro-batch of it one, or none"
    return None
