"""When a run is saved, and where."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import chain, count
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from functrain.disk.archive import opened
from functrain.disk.background import Background
from functrain.disk.packed import Packed
from functrain.disk.position import position_of
from functrain.disk.rotation import checked_keep, found_in, rotate
from functrain.disk.saving import pack
from functrain.disk.writing import write

BEST = "best"
"""The folder, beside the checkpoints of the run, that holds the best one."""


class Checkpoint:
    """Saves a run into a folder, by itself when :func:`functrain.fit` is given it, or with :meth:`save`.

    In ``fit`` it also saves when the run is interrupted, by Ctrl-C or SIGTERM: after the current micro-batch, and then
    the signal does what it does. A second one does so at once. The history of the run is kept beside the checkpoints,
    in ``history.jsonl``.

    Args:
        folder: for the checkpoints of one run.
        every: save at each so many steps, on the edge of the count; None for never.
        each_epoch: save at the end of each epoch.
        best: name of a number of the validation; save the best one so far in the folder ``best``.
        largest: the best is the largest number, not the smallest.
        keep: remove older checkpoints but for so many; None for never. The best one stays.
        background: write in a thread while training goes on.

    Raises:
        ValueError: a count that is none.

    >>> import tempfile, torch
    >>> from functrain import Shell, fit, latest
    >>> model = torch.nn.Linear(1, 1)
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), [])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saving = Checkpoint(folder, every=2, keep=1)
    ...     fit(shell, [torch.ones(2, 1)] * 5, lambda model, x: model(x).mean(), 1, progress=False, checkpoint=saving)
    ...     latest(folder).name
    History(...)
    'step00000004-batch00000004-epoch0000'

    See also: :func:`functrain.latest`, and ``resume`` of :func:`functrain.fit`.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        every: int | None = None,
        each_epoch: bool = False,
        best: str | None = None,
        largest: bool = False,
        keep: int | None = None,
        background: bool = False,
    ) -> None:
        """Check the counts."""
        checked_keep(keep)
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):  # pyright: ignore[reportUnnecessaryIsInstance] - users err
            raise ValueError(f"every must be a count of at least 1, or None for never, got {every!r}")
        self.folder, self.every, self.each_epoch = Path(folder), every, each_epoch
        self.best, self.largest, self.keep = best, largest, keep
        self._background = Background() if background else None
        self._last = Path()

    def save(self, run: Any, *, pipeline: Any = None, data: Any = None) -> Path:
        """Save a run now, under a name that says how far it has come; if it is there already, it is the same.

        Args:
            run: a shell, or a state of the pure engine.
            pipeline: the hooks of a pure state.
            data: a loader or sampler with ``state_dict``, or a mapping of plain values.

        Raises:
            OSError: the disk is full, or nothing may be written there; or what the save before this one met with.
            ValueError: something that is no data, with its place.
        """
        packed = pack(run, pipeline, data)
        if (name := name_of(packed)) != self._last.name:
            self._last = free_path(self.folder / name)
            self._hand_over(packed, self._last)
        return self._last

    def _hand_over(self, packed: Packed, path: Path) -> None:
        """Write now, or in the background."""
        if self._background is None:
            self._write(packed, path)
        else:
            self._background.write(packed, lambda copy: self._write(copy, path))

    def _write(self, packed: Packed, path: Path) -> None:
        written = write(packed, path)
        if self.keep is not None:
            rotate(written.parent, self.keep, written)

    def save_best(self, run: Any, summary: Mapping[str, Any], *, data: Any = None) -> None:
        """Save a run as the best so far, if its number is better than that of the one there.

        Raises:
            KeyError: the validation gave no such number; lists those it gave.
        """
        if self.best is None:
            return
        if self.best not in summary:
            raise KeyError(f"no number {self.best!r} in the validation; it gave {sorted(summary)}")
        number = float(summary[self.best])
        if self._is_better(number):
            packed = pack(run, None, {**(position_of(data) or {}), "best": {self.best: number}})
            self.wait()
            written = write(packed, free_path(self.folder / BEST / name_of(packed)))
            rotate(written.parent, 1, written)

    def _is_better(self, number: float) -> bool:
        """Tell whether a number is better than that of the best one there; NaN never is."""
        for each in found_in(self.folder / BEST):
            with opened(each.path) as archive:
                known: Any = archive.outline()["data"]["best"]
            if self.best in known:
                return number > known[self.best] if self.largest else number < known[self.best]
        return number == number  # noqa: PLR0124 - NaN

    def wait(self) -> None:
        """Wait until everything is written, and raise what went wrong."""
        if self._background is not None:
            self._background.wait()

    def close(self) -> None:
        """Wait, and raise what went wrong."""
        self.wait()

    def __enter__(self) -> Self:
        """Save inside."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait; what went wrong is noted on an exception that is on its way already."""
        if self._background is not None:
            self._background.__exit__(kind, error, trace)


def free_path(path: Path) -> Path:
    """Return a path at which nothing is: of a run that was rewound, the same names come again.

    >>> free_path(Path("nowhere/step1")).name
    'step1'
    """
    taken = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], taken) if not os.path.lexists(each))


def name_of(packed: Packed) -> str:
    """Return the name of a checkpoint: how far the run has come, in an order that sorts.

    >>> name_of(Packed("pure", {"step": 4, "batch": 8, "epoch": 1}, {}, [], []))
    'step00000004-batch00000008-epoch0001'
    """
    clock = packed.clock
    return f"step{clock['step']:08d}-batch{clock['batch']:08d}-epoch{clock['epoch']:04d}"
