"""CRC-32 of many tensors, computed in a thread beside the reading or writing of their bytes."""

from __future__ import annotations

import ctypes
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from torch import Tensor

SMALL = 1 << 18
"""How many bytes are not worth handing over."""


class Checksums:
    """Checksums by place; enter it, add tensors, leave it, read :attr:`found`.

    >>> import torch
    >>> with Checksums() as checksums:
    ...     checksums.add(0, torch.tensor([1, 2], dtype=torch.int8))
    >>> checksums.found
    {0: 3066839698}
    """

    def __init__(self) -> None:
        """Start with none."""
        self.found: dict[int, int] = {}
        self._pool = ThreadPoolExecutor(1, "functrain-checksums")
        self._waiting: dict[int, Future[int]] = {}

    def add(self, place: int, tensor: Tensor) -> None:
        """Add a contiguous tensor on the CPU; a small one is summed at once."""
        if tensor.nbytes < SMALL:
            self.found[place] = crc32(tensor)
        else:
            self._waiting[place] = self._pool.submit(crc32, tensor)

    def __enter__(self) -> Self:
        """Start."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what has been added."""
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self.found.update((place, future.result()) for place, future in self._waiting.items())


def crc32(tensor: Tensor) -> int:
    """Return the checksum of the bytes of a contiguous tensor on the CPU.

    >>> import torch
    >>> crc32(torch.tensor([1, 2], dtype=torch.int8)) == zlib.crc32(bytes([1, 2]))
    True
    """
    if not tensor.nbytes:
        return 0
    return zlib.crc32((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))
