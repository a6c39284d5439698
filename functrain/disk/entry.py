"""One tensor of a checkpoint in words."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from functrain._encoding import dtype_named, shape_of
from functrain.disk.layout import MOST_DIMENSIONS

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes of safetensors; any other is stored as bytes."""


class Entry(NamedTuple):
    """What is known of a tensor without its bytes.

    Attributes:
        name: its place as source text.
        dtype: its own, not that under which it is stored.
        shape: the same.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def is_plain(self) -> bool:
        """Whether safetensors knows the dtype; any other is stored as bytes."""
        return self.dtype in CODES

    @property
    def code(self) -> str:
        """What safetensors calls the dtype under which it is stored."""
        return CODES.get(self.dtype, "U8")

    @property
    def stored_shape(self) -> list[int]:
        """The shape under which it is stored."""
        return list(self.shape) if self.is_plain else [self.size]

    def made(self, device: str = "cpu") -> Tensor:
        """Return a tensor of this kind, with nothing in particular in it.

        Raises:
            ValueError: no memory for it.
        """
        try:
            return torch.empty(self.shape, dtype=self.dtype, device=device)
        except (RuntimeError, TypeError, OverflowError) as error:
            raise ValueError(f"no tensor of shape {self.shape} can be made: {str(error).splitlines()[0]}") from None

    def to_json(self, checksum: int) -> list[Any]:
        """Return the entry as the manifest holds it."""
        return [self.name, str(self.dtype).removeprefix("torch."), list(self.shape), checksum]


def entry_of(name: str, tensor: Tensor) -> Entry:
    """Return the entry of a tensor.

    >>> entry_of("w", torch.ones(2)).size
    8
    """
    return Entry(name, tensor.dtype, tuple(tensor.shape))


def read_entry(record: Any) -> tuple[Entry, int]:
    """Return an entry and a checksum out of the manifest.

    Raises:
        ValueError: no entry; says what is wrong with it.

    >>> read_entry(["w", "float32", [2], 7])
    (Entry(name='w', dtype=torch.float32, shape=(2,)), 7)
    """
    if not isinstance(record, list) or [type(each) for each in cast("list[Any]", record)] != [str, str, list, int]:
        raise ValueError(f"{str(cast('Any', record))[:80]} is no [name, dtype, shape, checksum]")
    name, dtype, shape, checksum = cast("list[Any]", record)
    if len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"{name} has {len(shape)} dimensions")
    return Entry(name, dtype_named(dtype), shape_of(shape)), checksum
