"""The text of a manifest."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import torch

import functrain
from functrain._sealed import sealed
from functrain.disk.layout import FORMAT, MOST_BYTES, MOST_NODES, VERSION
from functrain.disk.packed import Packed


def manifest_of(packed: Packed, checksums: Sequence[int], serial: int) -> bytes:
    """Return the manifest of a checkpoint whose tensors have been written.

    Raises:
        ValueError: it is too large to be read back.
    """
    content = {
        "kind": packed.kind,
        "serial": serial,
        "clock": packed.clock,
        "written_by": {
            "functrain": functrain.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "tensors": [entry.to_json(number) for entry, number in zip(packed.entries, checksums, strict=True)],
        "parts": packed.parts,
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
