"""The bytes of tensors: to a safetensors file and back, with checksums computed beside it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from functrain.disk.checksums import Checksums, crc32
from functrain.disk.entry import Entry
from functrain.disk.folder import sync_file


def storable(tensor: Tensor, where: str) -> Tensor:
    """Return a tensor as it can be stored.

    Raises:
        ValueError: one that has no bytes of its own, with its place.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else f"{tensor.layout}, {tensor.dtype}"
        raise ValueError(f"{where} is a tensor of kind {kind}, which cannot be stored")
    if is_traceable_wrapper_subclass(tensor):
        raise ValueError(f"{where} is a {type(tensor).__name__}, which cannot be stored; give its full tensor")
    if tensor.device.type == "cpu" and not _has_memory(tensor):
        raise ValueError(f"{where} is a tensor of kind without memory (freed, or traced), which cannot be stored")
    return tensor.detach()


def _has_memory(tensor: Tensor) -> bool:
    """Tell whether all elements lie in a storage: reading those that do not would end the process."""
    if not tensor.numel():
        return True
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        return tensor.data_ptr() != 0 and (last + 1) * tensor.itemsize <= tensor.untyped_storage().nbytes()
    except RuntimeError:  # of a transform, which has no storage
        return False


def write_tensors(path: Path, entries: Sequence[Entry], tensors: Sequence[Tensor]) -> list[int]:
    """Write a new safetensors file, durable when this returns, and return the checksum of each tensor.

    Raises:
        OSError: something is there, the disk is full, or it fails.
        ValueError: two tensors of one name.
    """
    plain = [_plain(tensor) for tensor in tensors]
    specs = {entry.name: _spec(entry, tensor) for entry, tensor in zip(entries, plain, strict=True)}
    if len(specs) < len(entries):
        raise ValueError("two tensors have one name")
    path.open("xb").close()
    mode = path.stat().st_mode
    with Checksums() as checksums:
        for place, tensor in enumerate(plain):
            checksums.add(place, tensor)
        try:
            serialize_file(specs, path)
        except SafetensorError as error:
            raise _os_error(error, path) from error
    path.chmod(mode)  # the package makes a file that only its owner may read, whatever the umask says
    sync_file(path)
    return [checksums.found[place] for place in range(len(entries))]


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor as its bytes are written; what is true has the byte 1, as whoever reads it expects."""
    plain = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    return plain.view(torch.uint8).ne(0) if plain.dtype is torch.bool else plain


def _spec(entry: Entry, tensor: Tensor) -> TensorSpec:
    dtype = str(tensor.dtype if entry.is_plain else torch.uint8).removeprefix("torch.")
    return TensorSpec(dtype=dtype, shape=entry.stored_shape, data_ptr=tensor.data_ptr(), data_len=entry.size)


def _os_error(error: SafetensorError, path: Path) -> OSError:
    """Return what the system has said: the package hands on only its text."""
    number = re.search(r"os error (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code) if number else str(error), str(path))


class TensorFile:
    """A safetensors file that has been opened, and whose header says what the manifest does."""

    def __init__(self, path: Path, entries: Sequence[Entry]) -> None:
        """Open the file and compare its header; no tensor is read.

        Raises:
            ValueError: it is no such file, or says something else.
        """
        self._entries = entries
        try:
            # pread: what is read is ours at once, and a file that shrinks meanwhile is an error instead of a crash.
            self._file: Any = safe_open(path, framework="pt", backend="pread")
        except (SafetensorError, OSError) as error:
            raise ValueError(str(error)) from None
        try:
            self._compare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.__exit__(None, None, None)

    def read(self, checksums: Sequence[int]) -> list[Tensor]:
        """Return the tensors.

        Raises:
            ValueError: one whose bytes are not those that were written, by name.
        """
        tensors: list[Tensor] = []
        with Checksums() as found:
            for place, tensor in enumerate(self._tensors()):
                tensors.append(tensor)
                found.add(place, tensor)
        for place, (entry, checksum) in enumerate(zip(self._entries, checksums, strict=True)):
            _check(entry, tensors[place], found.found[place], checksum)
        return tensors

    def check(self, checksums: Sequence[int]) -> None:
        """Read as :meth:`read` does, and keep nothing.

        Raises:
            ValueError: a tensor whose bytes are not those that were written, by name.
        """
        for entry, tensor, checksum in zip(self._entries, self._tensors(), checksums, strict=True):
            _check(entry, tensor, crc32(tensor), checksum)

    def _tensors(self) -> Iterator[Tensor]:
        """Yield one tensor after the other, of the dtype that the manifest gives it."""
        for entry in self._entries:
            try:
                stored: Tensor = self._file.get_tensor(entry.name)
            except (SafetensorError, RuntimeError, MemoryError, OSError) as error:
                raise ValueError(f"{entry.name} cannot be read: {str(error).splitlines()[0]}") from None
            yield stored if entry.is_plain else stored.view(entry.dtype).reshape(entry.shape)

    def _compare(self) -> None:
        if sorted(self._file.keys()) != sorted(entry.name for entry in self._entries):
            raise ValueError("its tensors are not those of the manifest")
        for entry in self._entries:
            stored = self._file.get_slice(entry.name)
            if (stored.get_dtype(), stored.get_shape()) != (entry.code, entry.stored_shape):
                found = f"{stored.get_dtype()} of shape {stored.get_shape()}"
                raise ValueError(f"{entry.name} is {found}; by the manifest it is {entry.code} {entry.stored_shape}")


def _check(entry: Entry, tensor: Tensor, found: int, checksum: int) -> None:
    if found != checksum:
        raise ValueError(f"{entry.name} is not what was written (crc32)")
    if tensor.dtype is torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
        raise ValueError(f"{entry.name} holds what is neither true nor false")
