"""Ctrl-C and SIGTERM, taken at a moment at which a run can be saved."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Remembers the first signal; a second one acts at once, as it would without this.

    Outside the main thread, where no signal can be caught, it does nothing.

    Attributes:
        wanted: the signal that came, or None.

    >>> with Interruption() as interruption:
    ...     print(interruption.wanted)
    None
    """

    def __init__(self) -> None:
        """Nothing has come."""
        self.wanted: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Catch signals from here on."""
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._remember) for each in SIGNALS}
        return self

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.wanted = number
        self._let_go()

    def _let_go(self) -> None:
        """Let signals act as before."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)

    def act(self) -> None:
        """Let the signal that came do what it does."""
        wanted, self.wanted = self.wanted, None
        if wanted is not None:
            os.kill(os.getpid(), wanted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let signals act as before; one that came too late to be saved for acts now."""
        self._let_go()
        if error is None:
            self.act()
