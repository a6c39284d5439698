"""Hooks as lanes over micro-batches; what repeats is folded, and what is still too long is summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from functrain.show.column import Column
from functrain.show.node import Grid

WHOLE = 24
"""So many columns are shown one by one."""

FOLDED = 12
"""So many there are at most where columns stand for several."""

SEVERITY = "dvlwsx."
"""The marks, the most telling first."""

COLOURS = {"x": "#4a9d5b", "s": "#9a9a9a", "w": "#6b8fb8", "l": "#8a63b8", "v": "#d9822b", "d": "#c8374a"}
"""Legible under white letters, in light and in dark."""


class Lane(NamedTuple):
    """A micro-batch or a flush, and what each hook did in it, as marks."""

    column: Column
    marks: tuple[str, ...]


class Stretch(NamedTuple):
    """Neighbours that are shown as one: from where to where, how many windows, and a cell for each hook."""

    label: str
    times: int
    cells: tuple[str, ...]


def lanes_grid(hooks: Sequence[str], lanes: Sequence[Lane]) -> Grid:
    """Return a column for each micro-batch, or, where they are many, for each stretch of equal windows.

    >>> lanes_grid(("clip",), [Lane(Column(n, "batch", n), ("x",)) for n in range(10_000)]).heads
    ('batch', '0-9999')
    """
    if len(lanes) <= WHOLE:
        labels = tuple(each.column.label for each in lanes)
        rows = [(name, *(each.marks[place] for each in lanes)) for place, name in enumerate(hooks)]
        return Grid(("batch", *labels), tuple(rows), colours=COLOURS)
    return _folded_grid("batch", hooks, lanes)


def windows_grid(hooks: Sequence[str], lanes: Sequence[Lane]) -> Grid:
    """Return a column for each window; many are folded.

    >>> lanes = [Lane(Column(n, "batch", n, boundary=n == 1), ("w" if n == 0 else "x",)) for n in range(2)]
    >>> windows_grid(("accumulate",), lanes).rows
    (('accumulate', 'wx'),)
    """
    found = [_stretch([each]) for each in windows_of(lanes)]
    if len(found) > WHOLE:
        return _folded_grid("window", hooks, lanes)
    return _grid("window", hooks, found)


def windows_of(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """Return the micro-batches of each window, with the flush that closes it; waits for the device."""
    found: list[list[Lane]] = [[]]
    for each in lanes:
        found[-1].append(each)
        if each.column.closes:
            found.append([])
    return [each for each in found if each]


def _folded_grid(head: str, hooks: Sequence[str], lanes: Sequence[Lane]) -> Grid:
    """Return stretches of equal windows, and how often; or, if those are many, stretches of equal length."""
    windows = windows_of(lanes)
    runs = [_stretch(list(run)) for _, run in groupby(windows, _cells)]
    if len(runs) > FOLDED:
        size = -(-len(windows) // FOLDED)
        runs = [_summed(windows[first : first + size]) for first in range(0, len(windows), size)]
    grid = _grid(head, hooks, runs)
    times = ("windows", *(str(each.times) for each in runs))
    return Grid(grid.heads, (times, *grid.rows), (), COLOURS, (_summary(lanes, len(windows)),))


def _grid(head: str, hooks: Sequence[str], found: Sequence[Stretch]) -> Grid:
    rows = [(name, *(each.cells[place] for each in found)) for place, name in enumerate(hooks)]
    return Grid((head, *(each.label for each in found)), tuple(rows), colours=COLOURS)


def _stretch(windows: list[list[Lane]]) -> Stretch:
    """Return equal windows as one."""
    return Stretch(_span(windows), len(windows), _cells(windows[0]))


def _summed(windows: list[list[Lane]]) -> Stretch:
    """Return unequal windows as one: how often each mark is there, the most telling first."""
    lanes = [lane for window in windows for lane in window]
    counts = [Counter(lane.marks[place] for lane in lanes) for place in range(len(lanes[0].marks))]
    cells = (" ".join(f"{mark}{found[mark]}" for mark in SEVERITY if found[mark]) for found in counts)
    return Stretch(_span(windows), len(windows), tuple(cells))


def _cells(window: Sequence[Lane]) -> tuple[str, ...]:
    """Return the marks of a window side by side, by hook; a slash stands before those of a flush."""
    flush = ["/" if lane.column.kind == "flush" else "" for lane in window]
    rows = zip(*(lane.marks for lane in window), strict=True)
    return tuple(_short([f"{slash}{mark}" for slash, mark in zip(flush, row, strict=True)]) for row in rows)


def _short(marks: Sequence[str]) -> str:
    """Return marks side by side, a long repetition with its count: ``w7x``."""
    runs = [(mark, len(list(run))) for mark, run in groupby(marks)]
    return "".join(mark * count if count <= 2 else f"{mark}{count}" for mark, count in runs)  # noqa: PLR2004 - ww is short


def _span(windows: Sequence[Sequence[Lane]]) -> str:
    """Return from which micro-batch to which."""
    first, last = windows[0][0].column, windows[-1][-1].column
    return first.label if first is last or first.label == last.label else f"{first.label}-{last.label}"


def _summary(lanes: Sequence[Lane], windows: int) -> str:
    """Return one sentence on all of them."""
    verdicts = Counter(word for each in lanes for word in each.column.verdict.split(", "))
    found = (f"{verdicts[word]} {word}" for word in ("stepped", "skipped", "waited", "dropped") if verdicts[word])
    flushes = sum(each.column.kind == "flush" for each in lanes)
    also = f" and {flushes} flushed" if flushes else ""
    return f"{len(lanes) - flushes} micro-batches in {windows} windows{also}: {', '.join(found)}"
