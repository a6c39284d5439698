"""The history of a run beside its checkpoints: lines of JSON that are only ever added to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from functrain._clock import Clock
from functrain.shell.history import History
from functrain.shell.record import SKIPPED_BY, read_records

NAME = "history.jsonl"
BEST = "best"
"""The folder beside the checkpoints that holds the best one; the log of the run is that of all."""


class HistoryLog:
    """Appends what is new in a history whenever the run is saved, and reads what came before a checkpoint.

    A run that goes on from an older checkpoint, or anew, adds its lines behind those that it makes void: of a
    micro-batch, and of an epoch's validation, the last line counts, and with it nothing counts that was written earlier
    and came later.

    Attributes:
        history: of the run.
    """

    def __init__(self, folder: Path | None) -> None:
        """Log into a folder, or nowhere."""
        self.history, self._path = History(), None if folder is None else folder / NAME
        self._records = self._validations = 0

    def resume(self, checkpoint: Path, clock: Clock) -> None:
        """Fill the history with what came before a checkpoint, as far as there is a log beside it."""
        folder = checkpoint.absolute().parent
        path = (folder.parent if folder.name == BEST else folder) / NAME
        records, validations = _read(path)
        self.history.raw += _before(records, "batch", int(clock.batch) + 1)
        self.history.validations += _before(validations, "epoch", int(clock.epoch))
        if self._path is not None and self._path.absolute() == path:
            self._records, self._validations = len(self.history.raw), len(self.history.validations)

    def save(self) -> None:
        """Append what is new; one transfer from each device."""
        if self._path is None:
            return
        records = self.history.raw[self._records :]
        validations = self.history.validations[self._validations :]
        read_records([*records, *validations])
        lines = [*({"record": each} for each in records), *({"validation": each} for each in validations)]
        _append(self._path, "".join(f"{json.dumps(each, default=_plain, skipkeys=True)}\n" for each in lines))
        self._records, self._validations = len(self.history.raw), len(self.history.validations)


def _append(path: Path, text: str) -> None:
    """Add lines to a file; one that was cut off in the middle of a line is given its end."""
    if not text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            text = text if file.read(1) == b"\n" else f"\n{text}"
        file.write(text.encode())


def _read(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the records and the validations that count; lines that are damaged do not."""
    records: list[dict[str, Any]] = []
    validations: list[dict[str, Any]] = []
    for kind, held in _lines(path):
        if kind == "record" and _is_record(held):
            _put(records, "batch", held | {SKIPPED_BY: tuple(held[SKIPPED_BY])})
            _drop(validations, "epoch", held.get("epoch", math.inf))
        elif kind == "validation" and _are_counts(held, ("epoch", "step")):
            _put(validations, "epoch", held)
    return records, validations


def _is_record(held: dict[str, Any]) -> bool:
    """Tell whether a line holds what a record has: counts, and names of hooks."""
    names: Any = held.get(SKIPPED_BY)
    counts = ["batch", *(each for each in ("epoch", "step") if each in held)]
    return _are_counts(held, counts) and isinstance(names, list) and all(isinstance(each, str) for each in names)  # pyright: ignore[reportUnknownVariableType]


def _are_counts(held: dict[str, Any], names: Iterable[str]) -> bool:
    return all(type(held.get(name)) is int for name in names)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what kind a line is, and what it holds."""
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for kind, held in cast("dict[str, Any]", found).items() if isinstance(found, dict) else ():
            if isinstance(held, dict):
                yield kind, cast("dict[str, Any]", held)


def _put(held: list[dict[str, Any]], name: str, new: dict[str, Any]) -> None:
    """Append in the place of all that came later."""
    _drop(held, name, new[name])
    held.append(new)


def _drop(held: list[dict[str, Any]], name: str, begin: float) -> None:
    """Remove what came later."""
    while held and held[-1][name] >= begin:
        held.pop()


def _before(held: list[dict[str, Any]], name: str, end: int) -> list[dict[str, Any]]:
    return [each for each in held if each[name] < end]


def _plain(value: Any) -> Any:
    """Return what a validation gave as a number, if it is one, and else nothing: it may be anything.

    >>> _plain(object()) is None
    True
    """
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - a class of one's own may raise what it likes, and the run must go on
        return None
