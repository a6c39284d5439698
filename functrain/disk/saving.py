"""Saving a run under a path, and the averages of one alone."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from functrain._fold import fold
from functrain._state import TrainState
from functrain.disk.packed import Packed
from functrain.disk.rotation import checked_keep, rotate
from functrain.disk.states import packed_state
from functrain.disk.writing import write

if TYPE_CHECKING:
    from functrain.shell.shell import Shell


def save(
    path: str | PathLike[str],
    run: Shell | TrainState,
    *,
    pipeline: Any = None,
    data: Any = None,
    keep: int | None = None,
) -> Path:
    """Save everything that a run needs to go on bitwise; the folder appears whole or not at all.

    Args:
        path: of the checkpoint, which must not exist: a checkpoint is never written over.
        run: a shell, or a state of the pure engine.
        pipeline: the hooks of a pure state, so that loading can compare their configuration; a shell knows its own.
        data: a loader or sampler with ``state_dict``, or a mapping of plain values, to be saved with it.
        keep: remove older checkpoints in the folder that ``path`` is in, but for so many.

    Returns:
        the path.

    Raises:
        FileExistsError: something is there already.
        OSError: the disk is full, or nothing may be written there; what was there is as before.
        ValueError: a state, a slot or a scheduler that holds something that is no data, with its place; a shell whose
            model is sharded over ranks, which ``Shell.save_sharded`` saves; one of several ranks in an open window.
        RuntimeError: a shell in an open batch.

    >>> import tempfile, torch
    >>> from functrain import Shell
    >>> model = torch.nn.Linear(1, 1)
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), [])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(f"{folder}/one", shell)
    ...     print(shell.load(path))
    <BLANKLINE>
    """
    checked_keep(keep)
    written = write(pack(run, pipeline, data), Path(path))
    if keep is not None:
        rotate(written.parent, keep, written)
    return written


def pack(run: Shell | TrainState, pipeline: Any = None, data: Any = None) -> Packed:
    """Return a run as it is written, on its own tensors.

    Raises:
        TypeError: neither a shell nor a state.
        ValueError: something that is no data, with its place.
    """
    if isinstance(run, TrainState):
        folded = fold(*pipeline) if isinstance(pipeline, list | tuple) else pipeline and fold(pipeline)
        return packed_state(run, folded, data)
    from functrain.shell.shell import Shell

    if not isinstance(run, Shell):  # pyright: ignore[reportUnnecessaryIsInstance] - users err
        raise TypeError(f"functrain.save needs a Shell or a TrainState, got {type(run).__name__}")
    return run._packed(data)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the other half of Shell.load
