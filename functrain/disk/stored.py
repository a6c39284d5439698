"""What :func:`functrain.load` returns: the content of a checkpoint, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from functrain._errors import CheckpointError
from functrain._fold import fold
from functrain._state import TrainState
from functrain.disk.archive import Archive, opened
from functrain.disk.conflicts import OnConflict
from functrain.disk.generators import set_generators
from functrain.disk.position import set_position
from functrain.disk.states import fitted_state


@dataclass(frozen=True)
class Stored:
    """A checkpoint in memory, all tensors on the CPU.

    Attributes:
        path: where it was read.
        kind: "shell" or "pure".
        clock: step, batch and epoch.
        written_by: versions of functrain, torch and Python.
        parts: everything, as plain trees; see :mod:`functrain.disk.layout`.

    >>> import tempfile
    >>> from functrain import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stored = load(save(f"{folder}/one", TrainState()))
    >>> stored.kind, stored.clock["step"], stored.pipeline
    ('pure', 0, None)
    """

    path: Path
    kind: str
    clock: Mapping[str, int]
    written_by: Mapping[str, str]
    parts: Mapping[str, Any]

    @property
    def state(self) -> Any:
        """A ``TrainState`` of the pure engine, to go on with as it is; of a shell a mapping of its fields."""
        return self.parts["state"]

    @property
    def pipeline(self) -> Mapping[str, Any] | None:
        """The configuration of each hook by name; None if a pure state was saved without its pipeline."""
        return self.parts["pipeline"]

    def into(self, state: TrainState, pipeline: Any = None, on_conflict: OnConflict = "raise") -> TrainState:
        """Return what was stored in the structure of a state of the pure engine, on its devices.

        Args:
            state: a fresh one, as ``init`` makes it.
            pipeline: the hooks of the run, whose configuration is compared with the stored one.
            on_conflict: what holds where they differ: "raise", or "stored", or "current".

        Raises:
            CheckpointError: another structure, shape or dtype; or the checkpoint of a shell.
            ValueError: a hook that was configured otherwise: field, both values, remedy.

        Warns:
            UserWarning: hooks that are missing from the checkpoint or left over in it.
        """
        if self.kind != "pure":
            told = "write shell.load(path) and then shell.to_pure()"
            raise CheckpointError(f"{self.path} holds a state of kind {self.kind!r}; {told}")
        hooks = None if pipeline is None else fold(*pipeline) if isinstance(pipeline, list | tuple) else fold(pipeline)
        found, report = fitted_state(state, self.parts, self.path, hooks, on_conflict)
        report.warn()
        return found

    def restore_random(self) -> None:
        """Set the generators of torch, Python and NumPy to where they were."""
        set_generators(self.parts["random"])

    def restore_data(self, data: Any) -> None:
        """Give a loader or sampler back the state that was saved of it."""
        set_position(data, self.parts["data"])


def load(path: str | PathLike[str]) -> Stored:
    """Read a checkpoint, all of it checked; nothing in it is executed.

    Of a shell it is what :meth:`functrain.Shell.load` would load. A pure state can be gone on with as it is,
    ``load(path).state``; or, checked against a fresh one and on its devices, ``load(path).into(init(...), pipeline)``.

    Raises:
        FileNotFoundError: there is no such folder.
        CheckpointError: it is damaged, foreign or hostile; names the part.

    >>> import tempfile, torch
    >>> from functrain import TrainState, save
    >>> state = TrainState(params={"main": {"w": torch.ones(2)}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load(save(f"{folder}/one", state)).state.params["main"]["w"]
    tensor([1., 1.])
    """
    with opened(path) as archive:
        parts = archive.read()
        _check_parts(archive, parts)
        return Stored(archive.path, archive.kind, archive.clock, archive.written_by, parts)


def _check_parts(archive: Archive, parts: Mapping[str, Any]) -> None:
    """Refuse what no save has written."""
    kind = {"pure": TrainState, "shell": Mapping}.get(archive.kind)
    if kind is None or not isinstance(parts.get("state"), kind):
        raise CheckpointError(f"{archive.path}: manifest.json: no state of kind {archive.kind[:20]!r}")
    missing = {"random", "pipeline", "data"} - parts.keys()
    if missing or not isinstance(parts["random"], Mapping) or not isinstance(parts["pipeline"], Mapping | None):
        raise CheckpointError(f"{archive.path}: manifest.json: its parts are not those of a checkpoint")
