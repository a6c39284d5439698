"""What is about to be written: a manifest without checksums, and the tensors that it speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from functrain._encoding import Encoder
from functrain.disk.entry import Entry, entry_of
from functrain.disk.tensor_file import storable


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
