"""Averages alone, for inference: a plain state dict that any reader of safetensors can open."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from os import PathLike
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING

from torch import Tensor

from functrain.disk.entry import Entry, entry_of
from functrain.disk.folder import PREFIX, sync_folder
from functrain.disk.tensor_file import storable, write_tensors

if TYPE_CHECKING:
    from functrain.shell.shell import Shell

METADATA = "__metadata__"
"""What safetensors keeps for itself among the names of a file."""


def save_average(path: str | PathLike[str], shell: Shell, name: str = "ema") -> Path:
    """Write averaged parameters and buffers under their plain names, as ``module.load_state_dict`` takes them.

    Of a model that is sharded over ranks, all ranks must call it, and rank 0 gathers and writes.

    Args:
        path: of a ``.safetensors`` file; one that is there is replaced, whole or not at all.
        shell: whose pipeline keeps the average.
        name: of the average.

    Raises:
        KeyError: no such average.
        RuntimeError: before its first update.
        ValueError: a name or a dtype that safetensors lacks.
        OSError: the disk is full, or nothing may be written there; what was there is as before.

    >>> import tempfile, torch
    >>> from functrain import EMA, Shell
    >>> model = torch.nn.Linear(1, 1)
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), EMA())
    >>> with shell.batch():
    ...     shell.update(model(torch.ones(1, 1)).sum())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_average(f"{folder}/ema.safetensors", shell).name
    'ema.safetensors'
    """
    target = Path(path).absolute()
    tensors = shell._average_to_write(name)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - only to be written
    return _written(target, tensors) if tensors or shell.state.rank == 0 else target


def _written(target: Path, tensors: dict[str, Tensor]) -> Path:
    """Write tensors beside the target, then put them in its place."""
    beside = target.with_name(f"{PREFIX}{target.name}-{secrets.token_hex(8)}")
    try:
        write_tensors(beside, [_entry(key, value) for key, value in tensors.items()], [*tensors.values()])
        if target.exists():  # who may read it does not change
            beside.chmod(S_IMODE(target.stat().st_mode))
        beside.replace(target)
        sync_folder(target.parent)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            told = f"{os.strerror(error.errno or errno.EIO)}: nothing was written, and what was there is as before"
            raise OSError(error.errno, told, str(target)) from error
        raise
    return target


def _entry(name: str, tensor: Tensor) -> Entry:
    """Return the entry of a tensor that any reader finds under its name, as what it is.

    Raises:
        ValueError: a name or a dtype that the format lacks.
    """
    if name == METADATA or not _is_text(name):
        raise ValueError(f"{name!r} is no name that a safetensors file can hold; give it another")
    entry = entry_of(name, storable(tensor, name))
    if not entry.is_plain:
        msg = f"{name} is {tensor.dtype}, which safetensors does not know; functrain.save(path, shell) stores any dtype"
        raise ValueError(msg)
    return entry


def _is_text(name: str) -> bool:
    try:
        return bool(name.encode()) or not name
    except UnicodeEncodeError:
        return False
