"""Writing what has been packed."""

from __future__ import annotations

from pathlib import Path

from functrain.disk.folder import appearing, sync_file
from functrain.disk.layout import MANIFEST, TENSORS
from functrain.disk.manifest import manifest_of
from functrain.disk.packed import Packed
from functrain.disk.rotation import found_in
from functrain.disk.tensor_file import write_tensors


def write(packed: Packed, path: Path) -> Path:
    """Write a checkpoint that is there whole or not at all, the latest of its folder; return its path.

    Raises:
        FileExistsError: something is there already.
        OSError: the disk is full, or nothing may be written there.
        ValueError: a state of more parts than a manifest may have.
    """
    target = path.absolute()
    with appearing(target) as folder:
        checksums = write_tensors(folder / TENSORS, packed.entries, packed.tensors)
        serial = 1 + max((each.order[0] for each in found_in(target.parent)), default=0)
        (folder / MANIFEST).write_bytes(manifest_of(packed, checksums, serial))
        sync_file(folder / MANIFEST)
    return target
