"""What may become of a checkpoint: by accident, or because somebody means harm."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from functrain._sealed import sealed
from functrain.disk.entry import read_entry
from functrain.disk.layout import FORMAT, MANIFEST, TENSORS

Damage = Callable[[Path, int], bool]
"""Damages a checkpoint, as a number says; tells whether it is not what was written any more."""
FORM = f"{FORMAT}1"


class Exploding:
    """What a pickle could do."""

    def __reduce__(self) -> Any:
        """Write a file where the test would see it."""
        return (os.mkdir, ("/tmp/functrain-was-here",))  # noqa: S108 - nobody is to make it


def flip(path: Path, number: int, name: str = TENSORS) -> bool:
    """Flip one bit of a file."""
    data = bytearray((path / name).read_bytes())
    data[number % len(data)] ^= 1 << number % 8
    (path / name).write_bytes(data)
    return True


def flip_manifest(path: Path, number: int) -> bool:
    """Flip one bit of the manifest; one in a blank between two values is none."""
    before = json.loads((path / MANIFEST).read_text())
    flip(path, number, MANIFEST)
    try:
        return json.loads((path / MANIFEST).read_text()) != before
    except ValueError:
        return True


def cut(path: Path, number: int) -> bool:
    """Cut a file off, somewhere."""
    name = (TENSORS, MANIFEST)[number % 2]
    size = (path / name).stat().st_size
    os.truncate(path / name, number % size)
    return name == TENSORS or number % size < size - 1  # the last byte is a line's end


def extend(path: Path, number: int) -> bool:
    """Write something behind the end of the tensors."""
    with (path / TENSORS).open("ab") as file:
        file.write(b"\0" * (1 + number % 100))
    return True


def remove_part(path: Path, number: int) -> bool:
    """Take one of the files away."""
    (path / (TENSORS, MANIFEST)[number % 2]).unlink()
    return True


def link(path: Path, number: int) -> bool:
    """Put a link in place of a file, to the very same content."""
    name = (TENSORS, MANIFEST)[number % 2]
    (path / name).rename(path.parent / f"{path.name}-moved")
    (path / name).symlink_to(path.parent / f"{path.name}-moved")
    return True


def no_file(path: Path, number: int) -> bool:
    """Put a folder or a pipe in place of a file: opening the pipe would wait for ever."""
    name = (TENSORS, MANIFEST)[number % 2]
    (path / name).unlink()
    (path / name).mkdir() if number % 4 < 2 else os.mkfifo(path / name)
    return True


def pickled(path: Path, number: int) -> bool:
    """Put a pickle in place of a file."""
    (path / (TENSORS, MANIFEST)[number % 2]).write_bytes(pickle.dumps(Exploding()))
    return True


def reseal(path: Path, change: Callable[[dict[str, Any]], Any], *, header: bool = False) -> None:
    """Change the content of a manifest and seal it again, as somebody would who means harm; the header, too."""
    content = json.loads((path / MANIFEST).read_text())["content"]
    old = json.loads(json.dumps(content["tensors"]))
    change(content)
    (path / MANIFEST).write_text(sealed(FORM, content))
    if header:
        rewrite_header(path / TENSORS, old, content["tensors"])


def rewrite_header(file: Path, old: list[Any], new: list[Any]) -> None:
    """Let the header of a safetensors file say of each tensor what a changed manifest does."""
    whole = file.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    offsets = {name: each["data_offsets"] for name, each in json.loads(whole[8:start]).items()}
    header, end = {}, 0
    for _, after in sorted(zip(old, new, strict=True), key=lambda pair: offsets[pair[0][0]]):
        entry = read_entry(after)[0]
        begin, end = end, end + entry.size
        header[entry.name] = {"dtype": entry.code, "shape": entry.stored_shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + whole[start:])


def swap_tensors(path: Path, number: int) -> bool:
    """Let two tensors of one size change their places."""

    def change(content: dict[str, Any]) -> None:
        alike = [each for each in content["tensors"] if each[2] == [4] and each[1] == "float32"]
        one, two = alike[number % len(alike)], alike[(number + 1) % len(alike)]
        one[0], two[0] = two[0], one[0]

    reseal(path, change)
    return True


def other_tensors(path: Path, number: int) -> bool:
    """Take the tensors of another checkpoint of the same run."""
    shutil.copy(path.parent / "other" / TENSORS, path / TENSORS)
    return True


def other_manifest(path: Path, number: int) -> bool:
    """Take the manifest of another checkpoint of the same run."""
    shutil.copy(path.parent / "other" / MANIFEST, path / MANIFEST)
    return True


def shapes(path: Path, number: int) -> bool:
    """Give every weight matrix another shape of the same size, consistently; or only in the manifest."""

    def change(content: dict[str, Any]) -> None:
        for each in content["tensors"]:
            if len(each[2]) == 2:
                each[2] = each[2][::-1]

    reseal(path, change, header=bool(number % 2))
    return True


def dtypes(path: Path, number: int) -> bool:
    """Give every tensor of floats another dtype of the same width, consistently; or only in the manifest."""

    def change(content: dict[str, Any]) -> None:
        for each in content["tensors"]:
            if each[1] == "float32" and each[2]:
                each[1] = "int32"

    reseal(path, change, header=bool(number % 2))
    return True


def huge(path: Path, number: int) -> bool:
    """Declare a tensor of a size that nobody has; in both files, if need be with a hole in the file as large."""
    size = [10**9, 10**12, 2**62, 10**30][number % 4]

    def change(content: dict[str, Any]) -> None:
        content["tensors"][number % len(content["tensors"])][2] = [size, size] if number % 8 > 3 else [size]

    reseal(path, change, header=bool(number % 3))
    if number % 3 == 2 and size < 10**13 and number % 8 < 4:
        os.truncate(path / TENSORS, 8 * size)
    return True


def many(path: Path, number: int) -> bool:
    """Let the manifest have 10^9 entries: a hole in the file, or more brackets than anything would parse."""
    if number % 2:
        os.truncate(path / MANIFEST, 10**9 * 8)
    else:
        (path / MANIFEST).write_text('{"format": "%s", "content": [%s0]}' % (FORM, "0," * 3_000_000))  # noqa: UP031
    return True


def deep(path: Path, number: int) -> bool:
    """Nest the manifest as deeply as the stack, or deeper."""
    depth = 200 + number % 100_000

    def change(content: dict[str, Any]) -> None:
        content["parts"]["state"] = "DEEP"

    reseal(path, change)
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace('"DEEP"', "[" * depth + "]" * depth))
    return True


def traversal(path: Path, number: int) -> bool:
    """Let names lead out of the folder, in the manifest and in the header."""
    names = ["../../escaped", "/tmp/escaped", "..", "a/../../b", "~/escaped", "\0"]  # noqa: S108 - nobody is to open it

    def change(content: dict[str, Any]) -> None:
        place = number % len(content["tensors"])
        content["tensors"][place][0] = names[number % len(names)]
        content["parts"]["state"]["dict"][0][0] = names[number % len(names)]

    reseal(path, change, header=True)
    return True


def numbers(path: Path, number: int) -> bool:
    """Write NaN, infinities and numbers without end where JSON has numbers."""
    text = (path / MANIFEST).read_text()
    bad = ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000][number % 5]
    (path / MANIFEST).write_text(text.replace('"serial": ', f'"serial": {bad} , "also": ', 1))
    return True


def nonsense(path: Path, number: int) -> bool:
    """Put something else in place of a value of the manifest, and seal it again."""
    values: list[Any] = [None, 3, "text", [], {}, True, {"tensor": 10**9}, {"record": {"of": "Popen", "fields": {}}}]

    def change(content: dict[str, Any]) -> None:
        holder, key = places_in(content)[number % len(places_in(content))]
        holder[key] = values[number // 7 % len(values)]

    before = json.loads((path / MANIFEST).read_text())["content"]
    reseal(path, change)
    return bool(json.loads((path / MANIFEST).read_text())["content"] != before)


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Return every place of a tree at which something else could stand, by holder and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in items for found in [(value, key), *places_in(each)]]


CERTAIN: list[Damage] = [
    flip, flip_manifest, cut, extend, remove_part, link, no_file, pickled, swap_tensors, other_tensors, other_manifest,
    shapes, dtypes, huge, many, deep, traversal, numbers,
]  # fmt: skip
"""What must never load."""
