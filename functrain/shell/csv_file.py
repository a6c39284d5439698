"""A history as a table in a file."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from functrain.shell.validation_place import last_of_epochs

PLACES = ("epoch", "step")


def write_csv(path: Path, records: Iterable[dict[str, Any]], validations: Iterable[dict[str, Any]]) -> None:
    """Write one row per micro-batch; what a validation found stands in the last row of its epoch."""
    rows = [dict(each) for each in records]
    last = last_of_epochs(rows)
    for each in validations:
        row = rows[last[each["epoch"]]] if each["epoch"] in last else _new_row(rows, each)
        row.update({_column(name): value for name, value in each.items() if name not in PLACES})
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows({name: _told(value) for name, value in row.items()} for row in rows)


def _column(name: str) -> str:
    return name if name == "validated_with" else f"validation/{name}"


def _new_row(rows: list[dict[str, Any]], validation: dict[str, Any]) -> dict[str, Any]:
    """Return a row for a validation of an epoch that has no record."""
    rows.append({name: validation[name] for name in PLACES})
    return rows[-1]


def _told(value: Any) -> Any:
    """Return a value as its cell: several words are parted by spaces.

    >>> _told(("finite@DO_BACKWARD", "spikes@DO_OPTIMIZER_STEP")), _told(0.5)
    ('finite@DO_BACKWARD spikes@DO_OPTIMIZER_STEP', 0.5)
    """
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else value  # pyright: ignore[reportUnknownArgumentType]
