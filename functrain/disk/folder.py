"""Folders that appear whole or not at all, and files in them that are files."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = ".functrain-"
"""What the name of a folder begins with that is being written or removed."""
YOUNG = 60.0
"""Seconds for which a folder may be without a lock: it has just been made."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def appearing(path: Path) -> Generator[Path]:
    """Give a new folder that is at ``path`` once the context is left, and nowhere if it raises.

    Raises:
        FileExistsError: something is there already.
        OSError: the disk is full, or nothing may be written there; nothing has changed.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "a checkpoint is never written over; give another path", str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        with _beside(path) as temporary:
            yield temporary
            sync_folder(temporary)
            temporary.rename(path)
            sync_folder(path.parent)
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise
        told = f"{os.strerror(error.errno or errno.EIO)}: no checkpoint was written, and what was there is as before"
        raise OSError(error.errno, told, str(path)) from error


@contextmanager
def _beside(path: Path) -> Generator[Path]:
    """Make a folder beside a path, locked as long as it is being written; remove it if anything raises."""
    temporary = path.parent / f"{PREFIX}{path.name}-{secrets.token_hex(8)}"
    temporary.mkdir()
    folder = os.open(temporary, FOLDER)
    try:
        with suppress(OSError):  # a file system without locks: then nobody takes it for a leftover either
            _lock(folder)
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(folder)


def _lock(folder: int) -> None:
    """Lock a folder, so that nobody takes it for a leftover.

    Raises:
        BlockingIOError: somebody else holds it.
    """
    import fcntl  # nothing else of functrain needs a system that has it

    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(parent: Path) -> None:
    """Remove what a process that was killed has left half written or half removed."""
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process is at it, or removes it as well
            if time.time() - left.lstat().st_mtime < YOUNG:
                continue
            folder = os.open(left, FOLDER | os.O_NOFOLLOW)
            try:
                _lock(folder)
                shutil.rmtree(left)
            finally:
                os.close(folder)


def remove(path: Path) -> None:
    """Remove a folder, which vanishes from its place at once."""
    leaving = path.with_name(f"{PREFIX}{path.name}-{secrets.token_hex(8)}")
    path.rename(leaving)
    sync_folder(path.parent)
    shutil.rmtree(leaving, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Make durable which names a folder has."""
    folder = os.open(path, FOLDER)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync_file(path: Path) -> None:
    """Make durable what a file holds."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def check_file(folder: int, name: str) -> None:
    """Check that a file of an open folder is one.

    Raises:
        ValueError: it is missing, a link, or no file.
    """
    os.close(open_file(folder, name))


def open_file(folder: int, name: str) -> int:
    """Return a file of an open folder, to be read.

    Raises:
        ValueError: it is missing, a link, or no file.
    """
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        known = {errno.ENOENT: "it is missing", errno.ELOOP: "it is a link"}
        raise ValueError(known.get(error.errno or 0, str(error.strerror))) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError("it is no regular file")
    return file
