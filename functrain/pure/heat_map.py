"""The picture of a sweep."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from functrain.pure.table import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from functrain.pure.table import SweepTable

WRITTEN = 12
"""Up to so many columns, cells hold their number as text."""


def draw(table: SweepTable, x: str, y: str, value: str) -> Figure:
    """Return a figure with one cell per pair of values.

    Raises:
        KeyError: no such column.
        ValueError: the same column on both axes.
    """
    from functrain.show.picture import Picture

    if x == y:
        msg = f"x and y are both {x!r}; a heat map needs two columns"
        raise ValueError(msg)
    across, up = sorted(set(table.column(x))), sorted(set(table.column(y)))
    cells = _cells(table, x, y, value)
    means = [[_mean(cells.get((a, b))) for a in across] for b in up]
    figure = Picture(figsize=(1.6 + 0.75 * len(across), 1.2 + 0.55 * len(up)), layout="constrained")
    axes: Axes = figure.subplots()
    image = axes.imshow(means, origin="lower", aspect="auto", cmap="viridis")
    figure.colorbar(image, label=value)
    _label(axes, x, across, y, up)
    for row, b in enumerate(up):
        for column, a in enumerate(across):
            _write(axes, (column, row), cells.get((a, b)), image if len(across) <= WRITTEN else None)
    return figure


def _cells(table: SweepTable, x: str, y: str, value: str) -> dict[tuple[Any, Any], list[float]]:
    """Return the values of the living lanes of each cell."""
    cells: dict[tuple[Any, Any], list[float]] = {}
    columns = (table.column(name) for name in (x, y, value, "dead"))
    for a, b, each, dead in zip(*columns, strict=True):
        cells.setdefault((a, b), []).extend([] if dead else [float(each)])
    return cells


def _mean(values: list[float] | None) -> float:
    return sum(values) / len(values) if values else math.nan


def _label(axes: Axes, x: str, across: list[Any], y: str, up: list[Any]) -> None:
    """Name the axes and what stands on them."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_xticks(range(len(across)), [shown(each) for each in across], rotation=45, ha="right")
    axes.set_yticks(range(len(up)), [shown(each) for each in up])


def _write(axes: Axes, place: tuple[int, int], values: list[float] | None, image: Any) -> None:
    """Cross out a cell whose lanes have all died; write the mean into any other."""
    if values is None:
        return
    if not values:
        axes.text(*place, "x", ha="center", va="center", color="tab:red", fontweight="bold")
    elif image is not None:
        mean = _mean(values)
        bright = sum(image.cmap(image.norm(mean))[:3]) > 1.5 if math.isfinite(mean) else True  # noqa: PLR2004 - half of 3
        axes.text(*place, f"{mean:.3g}", ha="center", va="center", fontsize=8, color="black" if bright else "white")
