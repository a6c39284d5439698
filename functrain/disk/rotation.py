"""Many checkpoints in one folder: which is the latest good one, and which may go."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from functrain._errors import CheckpointError
from functrain.disk.archive import opened
from functrain.disk.folder import PREFIX, remove
from functrain.disk.layout import MANIFEST, TENSORS


class Found(NamedTuple):
    """A checkpoint of a folder.

    Attributes:
        order: serial, step, batch and epoch.
        path: of the checkpoint.
    """

    order: tuple[int, int, int, int]
    path: Path


def latest(folder: str | PathLike[str]) -> Path | None:
    """Return the checkpoint of a folder that was written last and can be read; None if there is none at all.

    All of it is read and checked. ``fit(resume=None)`` begins anew: with ``resume=latest(folder)`` one program both
    starts a run and resumes it, and ``history.raw`` of a run that has begun anew starts at its first micro-batch.

    Args:
        folder: that holds checkpoints; it need not exist.

    Raises:
        CheckpointError: there are checkpoints, and all of them are damaged.

    Warns:
        UserWarning: of each damaged one that would have come first.

    >>> import tempfile
    >>> from functrain import TrainState, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(latest(folder))
    ...     latest(save(f"{folder}/one", TrainState()).parent).name
    None
    'one'
    """
    damaged = dict[Path, str]()
    found = list(found_in(Path(folder), damaged))
    for path in [*damaged]:
        _say(path, damaged[path])
    for each in found:
        if (reason := _complaint(each.path)) is None:
            return each.path
        damaged[each.path] = reason
        _say(each.path, reason)
    if damaged:
        raise CheckpointError(f"every checkpoint in {folder} is damaged: {'; '.join(damaged.values())}")
    return None


def _say(path: Path, reason: str) -> None:
    warnings.warn(f"skipped {path.name}, which is damaged: {reason}", UserWarning, stacklevel=3)


def _complaint(path: Path) -> str | None:
    """Return what is wrong with a checkpoint, all of which is read; None if nothing is."""
    try:
        with opened(path) as archive:
            archive.check()
    except (CheckpointError, OSError) as error:
        return str(error)
    return None


def found_in(folder: Path, damaged: dict[Path, str] | None = None) -> list[Found]:
    """Return the checkpoints of a folder whose manifests are good, the latest first.

    Args:
        folder: that holds checkpoints.
        damaged: gets the others, with what is wrong with them.
    """
    found: list[Found] = []
    for path in _candidates(folder):
        try:
            with opened(path) as archive:
                step, batch, epoch = (archive.clock[name] for name in ("step", "batch", "epoch"))
                found.append(Found((archive.serial, step, batch, epoch), path))
        except (CheckpointError, OSError) as error:
            if damaged is not None:
                damaged[path] = str(error)
    return sorted(found, reverse=True)


def _candidates(folder: Path) -> Iterator[Path]:
    """Yield the folders that look like checkpoints; links are none."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith(PREFIX) or path.is_symlink() or not path.is_dir():
            continue
        if (path / MANIFEST).exists() or (path / TENSORS).exists():
            yield path


def checked_keep(keep: Any) -> None:
    """Refuse a number of checkpoints that would keep none.

    Raises:
        ValueError: it is no count of at least 1.
    """
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        raise ValueError(f"keep must be a count of at least 1, or None for all, got {keep!r}")


def rotate(folder: Path, keep: int, saved: Path | None = None) -> list[Path]:
    """Remove the checkpoints of a folder that are older than the newest good ones; return those removed.

    One that is damaged is never counted, so the last good one is never removed.

    Args:
        folder: that holds checkpoints.
        keep: so many stay.
        saved: has just been written, and is known to be good.

    >>> import tempfile
    >>> from functrain import TrainState, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [save(f"{folder}/{name}", TrainState()) for name in ("first", "second")]
    ...     [path.name for path in rotate(Path(folder), keep=1)]
    ['first']
    """
    others = [each.path for each in found_in(folder) if each.path != saved]
    good = int(saved is not None)
    removed: list[Path] = []
    for path in others:
        if good >= keep:
            remove(path)
            removed.append(path)
        elif good or _complaint(path) is None:  # of those that stay, one is known to be good as a whole
            good += 1
    return removed
