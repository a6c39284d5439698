"""How far a run has come, shown in a terminal, a notebook or a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from time import monotonic
from types import TracebackType
from typing import Any, Self, TextIO, TypeAlias

from tqdm.std import tqdm

Told: TypeAlias = Callable[[], Mapping[str, Any]]
"""Makes the texts beside the count; called only when they are shown, since it may read a device."""

SECONDS = 30.0
"""How often a log file gets a line."""

LINE = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class Progress:
    """Counts batches, and shows nothing."""

    count = 0

    def advance(self) -> None:
        """Count one more batch."""
        self.count += 1

    def close(self, *, reads: bool) -> None:
        """Show the end; ``reads`` says whether the texts may be made once more."""

    def __enter__(self) -> Self:
        """Count inside."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show the end; after an exception no device is read, which might raise another one."""
        self.close(reads=kind is None and self.count > 0)


class Bar(Progress):
    """A bar that is drawn over itself."""

    def __init__(self, bar: Any, told: Told) -> None:
        self._bar, self._told = bar, told

    def advance(self) -> None:
        """Count; the texts are made when the bar is drawn, and appear the next time."""
        super().advance()
        if self._bar.update(1):
            self._bar.set_postfix(self._told(), refresh=False)

    def close(self, *, reads: bool) -> None:
        """Leave the last numbers behind."""
        if reads:
            self._bar.set_postfix(self._told(), refresh=False)
        self._bar.close()


class Lines(Progress):
    """Plain lines, one every so often and one at the end: what is drawn over itself spoils a file."""

    def __init__(self, total: int | None, told: Told, stream: TextIO) -> None:
        self._total, self._told, self._stream = total, told, stream
        self._began = self._shown = monotonic()

    def advance(self) -> None:
        """Count, and write a line if it is time."""
        super().advance()
        if (now := monotonic()) - self._shown >= SECONDS:
            self._shown = now
            self._write(self._told())

    def close(self, *, reads: bool) -> None:
        """Write where it ended."""
        self._write(self._told() if reads else {})

    def _write(self, told: Mapping[str, Any]) -> None:
        text = tqdm.format_meter(
            self.count,
            self._total,  # pyright: ignore[reportArgumentType] - None is documented
            monotonic() - self._began,
            unit="batch",
            postfix=", ".join(f"{name}={value}" for name, value in told.items()),
            bar_format=LINE,
        )
        with suppress(OSError, ValueError):  # a broken pipe or a closed file must not end a run, as bars do not
            print(text, file=self._stream, flush=True)


def progress(total: int | None, told: Told = dict, *, hidden: bool = False) -> Progress:
    """Return what counts batches and shows it on stderr: a bar in terminals and notebooks, lines elsewhere.

    Args:
        total: how many batches there will be, if that is known.
        told: makes the texts beside the count.
        hidden: show nothing, as with ``TQDM_DISABLE`` in the environment.

    >>> with progress(2, hidden=True) as shown:
    ...     shown.advance()
    >>> shown.count
    1
    """
    stream: TextIO | None = sys.stderr  # None in a program without a console
    if hidden or stream is None or os.environ.get("TQDM_DISABLE"):
        return Progress()
    if in_notebook():
        return Bar(_notebook_bar()(total=total, unit="batch"), told)
    if _is_terminal(stream):
        return Bar(tqdm(total=total, unit="batch"), told)
    return Lines(total, told, stream)


def _is_terminal(stream: Any) -> bool:
    """Tell whether a bar can be drawn; a stream may be closed, or know nothing but how to write.

    >>> _is_terminal(None)
    False
    """
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def in_notebook() -> bool:
    """Tell whether a kernel runs this, whose stderr is no terminal and can still draw over a line.

    >>> in_notebook()
    False
    """
    asked: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return asked is not None and "IPKernelApp" in getattr(asked(), "config", ())


def _notebook_bar() -> Any:
    """Return the bar of widgets where there are widgets; asked for without them, tqdm would warn."""
    try:
        import_module("ipywidgets")
    except ImportError:
        return tqdm
    return import_module("tqdm.auto").tqdm
