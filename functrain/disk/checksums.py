"""CRC-32 of many tensors, computed in a thread beside the reading or writing of their bytes."""

from __future__ import annotations

import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

SMALL = 1 << 18
"""What is smaller than this is not worth handing over."""
AHEAD = 8
"""How many chunks may wait: what waits is held in memory."""


class Checksums:
    """Checksums by place; enter it, add chunks in their order, leave it, read :attr:`found`.

    >>> with Checksums() as checksums:
    ...     checksums.add(0, memoryview(b"functrain"))
    >>> checksums.found
    {0: 3798805126}
    """

    def __init__(self) -> None:
        """Start with none."""
        self.found: dict[int, int] = {}
        self._pool = ThreadPoolExecutor(1, "functrain-checksums")
        self._waiting: deque[Future[None]] = deque()

    def add(self, place: int, chunk: memoryview, *, whole: bool = False) -> None:
        """Add the next chunk of a place; what is ``whole`` and small is summed at once."""
        if whole and len(chunk) < SMALL:
            self._sum(place, chunk)
            return
        while len(self._waiting) >= AHEAD:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._sum, place, chunk))

    def _sum(self, place: int, chunk: memoryview) -> None:
        self.found[place] = zlib.crc32(chunk, self.found.get(place, 0))

    def __enter__(self) -> Self:
        """Start."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what has been added."""
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
