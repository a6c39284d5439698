"""Saving while training goes on: what is saved is copied at once, and written in a thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from threading import Thread, get_native_id
from types import TracebackType
from typing import Any, Self

from functrain.disk.packed import Packed
from functrain.disk.saving import pack
from functrain.disk.writing import write

LOWEST = 19


def _give_way() -> None:
    """Let this thread run only where nobody else wants to: Linux has a priority for each thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), LOWEST)


class Background:
    """Saves checkpoints in a thread, one at a time; close it, or use it as a context manager.

    What went wrong in the thread is raised at the next save, at :meth:`wait`, or at :meth:`close`. Between saves there
    is no thread; at its end the process waits for the one that is writing.

    >>> import tempfile
    >>> from functrain import TrainState, load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Background() as background:
    ...         background.save(f"{folder}/one", TrainState())
    ...     load(f"{folder}/one").kind
    'pure'
    """

    def __init__(self) -> None:
        """Start with nothing to write."""
        self._thread: Thread | None = None
        self._failed: BaseException | None = None

    def save(self, path: str | PathLike[str], run: Any, *, pipeline: Any = None, data: Any = None) -> None:
        """Copy a run, and write it in a thread as :func:`functrain.save` would.

        Raises:
            OSError: what the save before this one met with.
            ValueError: something that is no data, with its place.
        """
        self.write(pack(run, pipeline, data), lambda packed: write(packed, Path(path)))

    def write(self, packed: Packed, how: Callable[[Packed], Any]) -> None:
        """Copy what is to be written once the save before this one is done, and write it in a thread."""
        self.wait()
        self._thread = Thread(target=self._run, args=(how, packed.copied()), name="functrain-save")
        self._thread.start()

    def _run(self, how: Callable[[Packed], Any], packed: Packed) -> None:
        _give_way()
        try:
            how(packed)
        except BaseException as error:  # noqa: BLE001 - raised where somebody hears it
            self._failed = error

    def wait(self) -> None:
        """Wait until everything is written, and raise what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

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
        try:
            self.close()
        except Exception as failed:
            if error is None:
                raise
            error.add_note(f"besides, a checkpoint could not be written: {failed}")
