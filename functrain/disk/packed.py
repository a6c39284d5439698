"""What is about to be written: a manifest without checksums, and the tensors that it speaks of."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import functrain
from functrain._encoding import Encoder
from functrain._sealed import sealed
from functrain.disk.entry import Entry, entry_of
from functrain.disk.folder import appearing, new_file
from functrain.disk.layout import FORMAT, MANIFEST, MOST_BYTES, MOST_NODES, TENSORS, VERSION
from functrain.disk.tensor_file import storable, write_all, write_tensors


@dataclass(frozen=True)
class Packed:
    """A checkpoint in memory.

    Attributes:
        kind: "shell" or "pure".
        clock: step, batch and epoch.
        parts: trees as JSON.
        entries: what the tensors are.
        tensors: themselves; those of the run unless :meth:`copied`.
    """

    kind: str
    clock: dict[str, int]
    parts: dict[str, Any]
    entries: list[Entry]
    tensors: list[Tensor]

    def copied(self) -> Packed:
        """Return one that stays true while training goes on."""
        return replace(self, tensors=[tensor.clone() for tensor in self.tensors])

    def write(self, path: str | PathLike[str]) -> Path:
        """Write a checkpoint that is there whole or not at all.

        Raises:
            FileExistsError: something is there already.
            OSError: the disk is full, or nothing may be written there.
            ValueError: a state of more parts than a manifest may have.
        """
        target = Path(path).absolute()
        with appearing(target) as folder:
            with new_file(folder, TENSORS) as file:
                checksums = write_tensors(file, self.entries, self.tensors)
            with new_file(folder, MANIFEST) as file:
                write_all(file, memoryview(self._manifest(checksums)))
        return target

    def _manifest(self, checksums: Sequence[int]) -> bytes:
        versions = {
            "functrain": functrain.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        content = {
            "kind": self.kind,
            "clock": self.clock,
            "written_by": versions,
            "tensors": [entry.to_json(number) for entry, number in zip(self.entries, checksums, strict=True)],
            "parts": self.parts,
        }
        text = sealed(f"{FORMAT}{VERSION}", content).encode()
        if len(text) > MOST_BYTES or nodes_of(text) > MOST_NODES:
            raise ValueError(f"a manifest of {len(text)} bytes and {nodes_of(text)} nodes is too large to be read back")
        return text


def nodes_of(text: bytes) -> int:
    """Return about how many values JSON has, without parsing it.

    >>> nodes_of(b'{"a":[1,2]}')
    3
    """
    return sum(map(text.count, (b",", b"[", b"{")))


def packed(kind: str, clock: Any, parts: Mapping[str, Any]) -> Packed:
    """Return parts as they are written.

    Args:
        kind: "shell" or "pure".
        clock: of the run.
        parts: trees by name.

    Raises:
        ValueError: something that is no data, with its place.
    """
    entries: list[Entry] = []
    tensors: list[Tensor] = []

    def store(tensor: Tensor, where: str) -> int:
        tensors.append(storable(tensor, where))
        entries.append(entry_of(where, tensor))
        return len(tensors) - 1

    encoder = Encoder(store)
    encoded = {name: encoder.encoded(part, name) for name, part in parts.items()}
    counts = {name: _largest(getattr(clock, name)) for name in ("step", "batch", "epoch")}
    return Packed(kind, counts, encoded, entries, tensors)


def _largest(count: Any) -> int:
    """Return a count; of lanes that of the one that is ahead."""
    return int(count.max() if isinstance(count, Tensor) else count)
