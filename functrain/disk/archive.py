"""A checkpoint on disk that has been opened, its manifest checked, its tensors not yet read."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from functrain._encoding import Decoder
from functrain._errors import CheckpointError
from functrain._sealed import parsed, unsealed
from functrain.disk.entry import read_entry
from functrain.disk.folder import FOLDER, check_file, open_file
from functrain.disk.layout import FORMAT, MANIFEST, MOST_BYTES, MOST_NODES, TENSORS, VERSION
from functrain.disk.manifest import nodes_of
from functrain.disk.tensor_file import TensorFile

COUNTS = ("step", "batch", "epoch")
CONTENT: dict[str, type[Any]] = {
    "kind": str,
    "serial": int,
    "clock": dict,
    "written_by": dict,
    "tensors": list,
    "parts": dict,
}


class Archive:
    """The content of a manifest, and the file of tensors, whose header says the same.

    Attributes:
        path: of the folder.
        kind: "shell" or "pure".
        serial: how many checkpoints of its folder were written before it.
        clock: step, batch and epoch.
        written_by: versions.
    """

    def __init__(self, path: Path, folder: int) -> None:
        """Read and check the manifest; nothing of the tensors but their header."""
        self.path = path
        with told(path, MANIFEST):
            content = _manifest(folder)
            self.kind: str = content["kind"]
            self.serial: int = content["serial"]
            self.clock: dict[str, int] = _clock(content["clock"])
            self.written_by: dict[str, str] = {str(key): str(each) for key, each in content["written_by"].items()}
            known = [read_entry(record) for record in content["tensors"]]
            self.entries, self._checksums = [entry for entry, _ in known], [number for _, number in known]
            self._parts: dict[str, Any] = content["parts"]
        with told(path, TENSORS):
            check_file(folder, TENSORS)
            self._file = TensorFile(path / TENSORS, self.entries)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def outline(self) -> dict[str, Any]:
        """Return the parts with tensors that have no memory, to see whether they fit.

        Raises:
            CheckpointError: a tree that is none.
        """
        with told(self.path, MANIFEST):
            return self._trees([entry.made("meta") for entry in self.entries])

    def read(self) -> dict[str, Any]:
        """Return the parts.

        Raises:
            CheckpointError: bytes that are not those that were written.
        """
        self.outline()
        with told(self.path, TENSORS):
            tensors = self._file.read(self._checksums)
        with told(self.path, MANIFEST):
            return self._trees(tensors)

    def check(self) -> None:
        """Read everything and keep nothing.

        Raises:
            CheckpointError: bytes that are not those that were written.
        """
        self.outline()
        with told(self.path, TENSORS):
            self._file.check(self._checksums)

    def _trees(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """Return the parts as trees, with each of the tensors at one place."""
        unused = set(range(len(tensors)))

        def fetch(place: Any) -> Tensor:
            if type(place) is not int or place not in unused:
                raise ValueError(f"{str(place)[:20]!r} is no tensor, or one that is already at another place")
            unused.remove(place)
            return tensors[place]

        try:
            parts = {name: Decoder(fetch).decoded(part) for name, part in self._parts.items()}
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if unused:
            raise ValueError(f"nobody knows where {self.entries[min(unused)].name} belongs")
        return parts


@contextmanager
def opened(path: str | PathLike[str]) -> Generator[Archive]:
    """Open a checkpoint.

    Raises:
        FileNotFoundError: there is no such folder.
        CheckpointError: it is damaged or no checkpoint.
    """
    where = Path(path)
    try:
        folder = os.open(where, FOLDER)
    except NotADirectoryError:
        raise CheckpointError(f"{where} is no checkpoint: a checkpoint is a folder") from None
    try:
        archive = Archive(where, folder)
    finally:
        os.close(folder)
    try:
        yield archive
    finally:
        archive.close()


@contextmanager
def told(path: Path, part: str) -> Generator[None]:
    """Say of which part of which checkpoint it is that something is wrong."""
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{path}: {part}: {error}") from error


def _manifest(folder: int) -> dict[str, Any]:
    """Return the content of the manifest, each part of it of its type."""
    whole = parsed(_text(folder))
    form = str(whole.get("format"))
    if not form.startswith(FORMAT):
        raise ValueError(f"its format is {form[:80]!r}, which is no checkpoint of functrain")
    if form != f"{FORMAT}{VERSION}":
        raise ValueError(f"it has version {form.removeprefix(FORMAT)[:20]}; this functrain reads version {VERSION}")
    content = unsealed(whole)
    for name, kind in CONTENT.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"its {name!r} is no {kind.__name__}")  # noqa: TRY004 - the content of a file
    return content


def _text(folder: int) -> str:
    """Return the manifest, if it is of a size that can be parsed."""
    file = open_file(folder, MANIFEST)
    with open(file, "rb") as stream:  # noqa: PTH123 - a file that is open already
        size = os.fstat(file).st_size
        text = stream.read(MOST_BYTES) if size <= MOST_BYTES else b""
    if size > MOST_BYTES or nodes_of(text) > MOST_NODES:
        raise ValueError(f"{size} bytes are more than a manifest may have, or it has more than {MOST_NODES} nodes")
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise ValueError("it is no text") from None


def _clock(counts: Any) -> dict[str, int]:
    if [type(counts.get(name)) for name in COUNTS] != [int] * len(COUNTS):
        raise ValueError(f"its clock needs the counts {list(COUNTS)}")
    return {name: cast("dict[str, int]", counts)[name] for name in COUNTS}
