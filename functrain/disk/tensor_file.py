"""The bytes of tensors: to a file and back, with checksums computed meanwhile."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from functrain.disk.checksums import Checksums
from functrain.disk.entry import Entry, file_order, header_of
from functrain.disk.layout import CHUNK


def storable(tensor: Tensor, where: str) -> Tensor:
    """Return a tensor as it can be stored.

    Raises:
        ValueError: one that has no bytes of its own, with its place.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "meta" if tensor.is_meta else f"{tensor.layout}, {tensor.dtype}"
        raise ValueError(f"{where} is a tensor of kind {kind}, which cannot be stored")
    if is_traceable_wrapper_subclass(tensor):
        raise ValueError(f"{where} is a {type(tensor).__name__}, which cannot be stored; give its full tensor")
    return tensor.detach()


def bytes_of(tensor: Tensor) -> memoryview:
    r"""Return the memory of a contiguous tensor on the CPU, and keep the tensor as long as somebody has it.

    >>> bytes(bytes_of(torch.tensor([1, 2], dtype=torch.int8)))
    b'\x01\x02'
    """
    size = tensor.numel() * tensor.dtype.itemsize
    if not size:
        return memoryview(b"")
    memory = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    memory.tensor = tensor  # pyright: ignore[reportAttributeAccessIssue] - an address alone keeps nothing alive
    return memoryview(memory).cast("B")


def chunks_of(memory: memoryview) -> Iterator[memoryview]:
    """Yield memory in pieces that are read or written at a time."""
    for start in range(0, len(memory), CHUNK):
        yield memory[start : start + CHUNK]


def write_tensors(file: int, entries: Sequence[Entry], tensors: Sequence[Tensor]) -> list[int]:
    """Write a safetensors file, and return the checksum of each tensor.

    Raises:
        OSError: the disk is full, or fails.
    """
    header = header_of(entries)
    _reserve(file, len(header) + sum(entry.size for entry in entries))
    write_all(file, memoryview(header))
    with Checksums() as checksums:
        for place in file_order(entries):
            memory = bytes_of(tensors[place].resolve_conj().resolve_neg().cpu().contiguous())
            for chunk in chunks_of(memory):
                checksums.add(place, chunk, whole=len(chunk) == len(memory))
                write_all(file, chunk)
    return [checksums.found.get(place, 0) for place in range(len(entries))]


def _reserve(file: int, size: int) -> None:
    """Ask for the room at once: a full disk says so before anything is written, and writing is faster."""
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # a system that has no such call
        return
    except OSError as error:  # a file system that cannot do it
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def write_all(file: int, memory: memoryview) -> None:
    """Write all of it."""
    while memory:
        memory = memory[os.write(file, memory) :]


def read_tensors(file: int, entries: Sequence[Entry], checksums: Sequence[int]) -> list[Tensor]:
    """Read the tensors behind a header that has been compared.

    Raises:
        ValueError: a tensor whose bytes are not those that were written, by name.
    """
    tensors = [entry.made() for entry in entries]
    with Checksums() as found:
        for place in file_order(entries):
            memory = bytes_of(tensors[place])
            for chunk in chunks_of(memory):
                _fill(file, chunk, entries[place])
                found.add(place, chunk, whole=len(chunk) == len(memory))
    _compare(entries, checksums, found)
    for entry, tensor in zip(entries, tensors, strict=True):
        if tensor.dtype is torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise ValueError(f"{entry.name} holds what is neither true nor false")
    return tensors


def check_tensors(file: int, entries: Sequence[Entry], checksums: Sequence[int]) -> None:
    """Read as :func:`read_tensors` does, and keep nothing.

    Raises:
        ValueError: a tensor whose bytes are not those that were written, by name.
    """
    with Checksums() as found:
        for place in file_order(entries):
            size = entries[place].size
            for start in range(0, size, CHUNK):
                chunk = memoryview(bytearray(min(CHUNK, size - start)))
                _fill(file, chunk, entries[place])
                found.add(place, chunk, whole=len(chunk) == size)
    _compare(entries, checksums, found)


def _fill(file: int, memory: memoryview, entry: Entry) -> None:
    while memory:
        count = os.readv(file, [memory])
        if not count:
            raise ValueError(f"{entry.name} is cut off")
        memory = memory[count:]


def _compare(entries: Sequence[Entry], checksums: Sequence[int], found: Checksums) -> None:
    for place, (entry, checksum) in enumerate(zip(entries, checksums, strict=True)):
        if found.found.get(place, 0) != checksum:
            raise ValueError(f"{entry.name} is not what was written (crc32)")
