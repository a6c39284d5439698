"""Measuring contenders in turns, and showing what was found."""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.table import Table
from torch import Tensor
from tqdm import tqdm

Update = Callable[[], None]
Tensors = Callable[[], Iterable[Tensor]]
Row = dict[str, Any]


class Contender(Protocol):
    """One way to update, warm from one block to the next."""

    def block(self, count: int) -> list[float]:
        """Return the milliseconds of each of so many updates."""
        ...

    def weights(self) -> Iterable[Tensor]:
        """Return the weights as they are now."""
        ...

    def average(self) -> Iterable[Tensor]:
        """Return their average."""
        ...


@dataclass
class Repeated:
    """A contender that is one function, called again and again."""

    update: Update
    weights: Tensors = tuple
    average: Tensors = tuple

    def block(self, count: int) -> list[float]:
        """Time each call."""
        return [timed(self.update) for _ in range(count)]


class Column(NamedTuple):
    """A column of a table: its head, the key of its values and how they are written."""

    head: str
    key: str
    form: str = ".3f"


def timed(update: Update) -> float:
    """Return the milliseconds of one call."""
    start = time.perf_counter()
    update()
    return 1e3 * (time.perf_counter() - start)


def interleaved(contenders: Mapping[str, Contender], rounds: int, block: int, warm: int, what: str) -> dict[str, Any]:
    """Return the milliseconds of all updates, block by block in turns, without the first few of each block."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in tqdm(range(rounds), desc=what):
        for name, each in contenders.items():
            times[name] += each.block(warm + block)[warm:]
    return times


def summary(times: Sequence[float]) -> Row:
    """Return the median, and the tenth percentile, which a noisy machine disturbs less."""
    return {"ms": statistics.median(times), "ms_p10": sorted(times)[len(times) // 10]}


def imported(name: str) -> Any:
    """Import a module of a package that may not be installed.

    Raises:
        ImportError: it is not, or something that it imports does not fit torch.
    """
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        raise ImportError(str(error)) from error


def missing(error: Exception) -> Row:
    """Return the row of a contender that is not there, with the reason.

    >>> missing(ModuleNotFoundError("No module named 'other'"))
    {'missing': "not installed: No module named 'other'"}
    """
    kind = "not installed" if isinstance(error, ImportError) else "not possible"
    return {"missing": f"{kind}: {str(error).splitlines()[0]}"}


def show(title: str, columns: Sequence[Column], groups: Mapping[str, Sequence[Row]]) -> None:
    """Print groups of rows as one table, each under its name if it has one; the first column is text."""
    table = Table(*(column.head for column in columns), title=title)
    for name, rows in groups.items():
        if name:
            table.add_row(f"[bold]{name}")
        for row in rows:
            table.add_row(*cells(columns, row))
        table.add_section()
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def cells(columns: Sequence[Column], row: Row) -> list[str]:
    """Return what stands in a row: values where there are any, and the reason where there are none.

    >>> cells([Column("", "what", ""), Column("ms", "ms", ".1f")], {"what": "loop", "ms": 1.25})
    ['loop', '1.2']
    """
    first, *others = ["" if (value := row.get(key)) is None else format(value, form) for _, key, form in columns]
    return [f"{first} ({row['missing']})" if "missing" in row else first, *others]
