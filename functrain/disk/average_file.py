"""Averages alone, for inference: a plain state dict that any reader of safetensors can open."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from functrain.disk.entry import entry_of
from functrain.disk.folder import PREFIX, sync_folder
from functrain.disk.tensor_file import write_tensors

if TYPE_CHECKING:
    from functrain.shell.shell import Shell


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
        write_tensors(beside, [entry_of(key, value) for key, value in tensors.items()], [*tensors.values()])
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
