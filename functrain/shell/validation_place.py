"""Where in a run a validation was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def last_of_epochs(records: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Return the place of the last record of each epoch: behind it came the validation.

    >>> last_of_epochs([{"epoch": 0}, {"epoch": 0}, {"epoch": 1}])
    {0: 1, 1: 2}
    """
    return {each["epoch"]: place for place, each in enumerate(records) if "epoch" in each}


def batches_of(validations: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> list[Any]:
    """Return for each validation how many micro-batches came before it; its step where its epoch has no record.

    >>> batches_of([{"epoch": 0, "step": 1}], [{"epoch": 0, "batch": 1}, {"epoch": 0, "batch": 2}])
    [2]
    """
    last = last_of_epochs(records)
    epochs = [(each["epoch"], each["step"]) for each in validations]
    return [records[last[epoch]]["batch"] if epoch in last else step for epoch, step in epochs]
