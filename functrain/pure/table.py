"""What a sweep found: one record per lane."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from functrain._state import TrainState
from functrain.pure.lanes import unstacked

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Record = dict[str, Any]


@dataclass(frozen=True)
class SweepTable:
    """One row per lane: what was set in it, and how it fared.

    ============  ====================================================================================
    ``lane``      its number; ``table.state(lane)`` is its final state
    swept keys    what was set
    ``loss``      of its last micro-batch that was not dropped
    ``mean_loss`` over all its micro-batches that were not dropped
    ``steps``     executed updates
    ``skips``     skipped ones
    ``batches``   micro-batches presented; in a dead lane until it died
    ``dead``      its weights or loss are not finite, or it skipped more than a hook allows
    ============  ====================================================================================

    Attributes:
        rows: the records.
        states: the final states, stacked; a dead lane has that in which it died.
        losses: float64, lanes by micro-batches; NaN after death.

    >>> table = SweepTable(({"lane": 0, "lr": 0.1, "dead": False},), TrainState(), torch.zeros(1, 1))
    >>> print(table.to_text(plain=True))
    lane   lr   dead
       0  0.1  False
    """

    rows: tuple[Record, ...]
    states: TrainState
    losses: Tensor

    def __len__(self) -> int:
        """Return how many lanes there are."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records."""
        return iter(self.to_records())

    def to_records(self) -> list[Record]:
        """Return one dict of plain numbers per lane, ready for a data frame."""
        return [dict(row) for row in self.rows]

    def state(self, lane: int) -> TrainState:
        """Return the final state of a lane, as if it had run alone.

        Raises:
            IndexError: no such lane.
        """
        if not 0 <= lane < len(self):
            msg = f"no lane {lane}; there are {len(self)}, counted from 0"
            raise IndexError(msg)
        return unstacked(self.states, lane)

    def column(self, name: str) -> list[Any]:
        """Return a column.

        Raises:
            KeyError: no such column; lists those there are.
        """
        if name not in self.rows[0]:
            msg = f"no column {name!r}; there are {list(self.rows[0])}"
            raise KeyError(msg)
        return [row[name] for row in self.rows]

    def best(self, value: str = "loss", *, largest: bool = False) -> Record:
        """Return the record of the living lane with the smallest value, or the largest.

        Raises:
            KeyError: no such column.
            ValueError: no lane lives, or none has a value that is a number.
        """
        self.column(value)
        found = [row for row in self.rows if not row["dead"] and not math.isnan(row[value])]
        if not found:
            msg = f"no lane lives that has a number as {value!r}: {sum(self.column('dead'))} of {len(self)} are dead"
            raise ValueError(msg)
        return dict((max if largest else min)(found, key=lambda row: row[value]))

    def measured(self, name: str, function: Callable[[TrainState], Any], max_lanes: int | None = None) -> SweepTable:
        """Return the table with one more column: a function of each lane's final state.

        Args:
            name: of the column.
            function: ``function(state) -> 0-d tensor``; it runs under ``vmap``, for all lanes at once.
            max_lanes: for at most so many at once.

        Raises:
            ValueError: a column of that name is there.
        """
        if name in self.rows[0]:
            msg = f"there is a column {name!r} already"
            raise ValueError(msg)
        with torch.no_grad():
            found: list[Any] = torch.func.vmap(function, chunk_size=max_lanes)(self.states).tolist()
        rows = [row | {name: value} for row, value in zip(self.rows, found, strict=True)]
        return replace(self, rows=tuple(rows))

    def heat_map(self, x: str, y: str, value: str = "loss", path: str | Path | None = None) -> Figure:
        """Draw a value over two swept keys; needs the extra ``plot``.

        A cell is the mean over its living lanes (seeds, say); one whose lanes have all died is crossed out.

        Args:
            x: column for the horizontal axis.
            y: column for the vertical axis.
            value: column that is the color.
            path: where to write the picture, too.
        """
        from functrain.pure.heat_map import draw

        figure = draw(self, x, y, value)
        if path is not None:
            figure.savefig(path)
        return figure

    def to_text(self, *, plain: bool = False) -> str:
        """Return the table as text: drawn by rich, if it is installed; or plain."""
        if plain or find_spec("rich") is None:
            return _plain_text(self.rows)
        from rich.console import Console

        drawn = StringIO()
        Console(file=drawn, width=20 * len(self.rows[0]), color_system=None).print(self.__rich__())
        return drawn.getvalue().rstrip()

    def __rich__(self) -> Table:
        """Return the table as a console of rich shows it."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in self.rows[0]:
            head = name.replace(".", ".\n").replace("_", "_\n")  # narrow, so that ten columns fit on a terminal
            table.add_column(head, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(shown, row.values()), style="dim" if row["dead"] else None)
        return table

    def __str__(self) -> str:
        """Return the table as text."""
        return self.to_text()

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        from functrain.show.node import Grid
        from functrain.show.view import View

        rows = tuple(tuple(map(shown, row.values())) for row in self.rows)
        return View(Grid(tuple(self.rows[0]), rows)).html()

    def __repr__(self) -> str:
        """Show sizes: printing must not fill a screen."""
        return f"SweepTable({len(self)} lanes, {sum(self.column('dead'))} dead, columns={list(self.rows[0])})"


def shown(value: Any) -> str:
    """Return a value as a cell shows it.

    >>> shown(0.12345678), shown(3), shown(True)
    ('0.1235', '3', 'True')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain_text(rows: Sequence[Record]) -> str:
    """Lay rows out in columns."""
    lines = [list(rows[0]), *([shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
