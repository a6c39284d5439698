"""A history for TensorBoard, written by its own library."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, TypeAlias

from functrain.shell.record import SKIPPED_BY
from functrain.shell.validation_place import batches_of

COUNTS = ("batch", "step", "epoch", SKIPPED_BY)
MISSING = (
    "history.to_tensorboard needs tensorboard, which is not installed here: run  "
    'pip install "functrain[tensorboard]"  or write history.to_csv(path)'
)
Scalar: TypeAlias = tuple[str, Any, int]
"""Tag, value, and the micro-batch at which it is drawn."""


def write_events(
    log_dir: str | PathLike[str], records: Sequence[dict[str, Any]], validations: Sequence[dict[str, Any]]
) -> None:
    """Write every number over the micro-batches.

    Raises:
        ImportError: no tensorboard, with the line that installs it.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise ImportError(MISSING) from error
    with SummaryWriter(str(log_dir)) as writer:
        for tag, value, batch in [*_of_training(records), *_of_validations(validations, records)]:
            writer.add_scalar(tag, value, batch)


def _of_training(records: Sequence[dict[str, Any]]) -> Iterator[Scalar]:
    """Yield the numbers of each micro-batch, and at each skip how many there were by the same hook."""
    skips = Counter[str]()
    for each in records:
        yield from _scalars("training", each, each["batch"])
        for veto in each.get(SKIPPED_BY, ()):
            skips[veto] += 1
            yield f"skips/{veto.replace('@', '/')}", skips[veto], each["batch"]


def _of_validations(validations: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> Iterator[Scalar]:
    for each, batch in zip(validations, batches_of(validations, records), strict=True):
        yield from _scalars("validation", each, batch)


def _scalars(group: str, held: dict[str, Any], batch: int) -> Iterator[Scalar]:
    """Yield what is a number."""
    for name, value in held.items():
        if name not in COUNTS and isinstance(value, int | float):
            yield f"{group}/{name}", _as_float(value), batch


def _as_float(number: float) -> float:
    """Return a number that TensorBoard takes: an int may be too large for a float.

    >>> _as_float(3), _as_float(-(10**400))
    (3.0, -inf)
    """
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number > 0 or -1)
