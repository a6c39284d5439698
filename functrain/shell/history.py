"""What a run looked like: one record per micro-batch, kept on the device until somebody reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from functrain._state import TrainState
from functrain.shell.fetching import kept
from functrain.shell.record import read_records, record_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNREAD = 1000
"""So many records may wait on the device; then they are read by themselves, which bounds the memory they take."""


@dataclass(repr=False)
class History:
    """Records of a run, in order.

    Nothing is read from a device while a run is recorded, but for one transfer in a thousand micro-batches. What is
    waiting is read at once, by one transfer from each device, and then stays read.

    Attributes:
        raw: one dict per micro-batch; tensors stay tensors until somebody reads the history.
        validations: one dict per validation; ``validated_with`` says which average was looked at, or "raw".

    >>> History([{"loss": 0.5, "step": 1}])
    History(1 micro-batches, 1 steps, 0 validations)
    """

    raw: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    validations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __repr__(self) -> str:
        """Show counts: a run has too many records to read, and printing reads no device."""
        steps = self.raw[-1].get("step", 0) if self.raw else 0
        return f"History({len(self.raw)} micro-batches, {steps} steps, {len(self.validations)} validations)"

    def record(self, state: TrainState) -> None:
        """Keep what one micro-batch did; reads no device."""
        self.raw.append(record_of(state))
        if len(self.raw) % UNREAD == 0:
            read_records(self.raw[-UNREAD:])

    def record_validation(self, state: TrainState, summary: dict[str, Any]) -> None:
        """Keep what a validation found, and when."""
        place = {"epoch": state.clock.epoch, "step": state.clock.step}
        self.validations.append({name: kept(value) for name, value in (summary | place).items()})

    def read(self) -> None:
        """Read what still waits on devices, in place; :meth:`to_records`, pictures and files do so by themselves.

        >>> import torch
        >>> history = History([{"loss": torch.tensor(0.5)}])
        >>> history.read()
        >>> history.raw
        [{'loss': 0.5}]
        """
        read_records([*self.raw, *self.validations])

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records with all tensors read."""
        return self.to_records()

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dict of plain numbers per micro-batch, ready for a data frame."""
        self.read()
        return [dict(each) for each in self.raw]

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw loss, gradient norm, loss scale, skips by hook and validation scores; needs the extra ``plot``.

        What the run does not have has no panel. A notebook shows the figure if it is the last value of a cell.

        Args:
            path: where to write the picture, too.

        >>> History([{"loss": 0.5, "batch": 1}]).plot().axes[0].get_ylabel()
        'loss'
        """
        from functrain.shell.plot import draw

        figure = draw(self)
        if path is not None:
            figure.savefig(path)
        return figure

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write a table: one row per micro-batch, and in the last row of an epoch what its validation found.

        Args:
            path: of the file, which is replaced.

        >>> import tempfile
        >>> history = History([{"loss": 0.5, "batch": 1, "epoch": 0}], [{"accuracy": 0.75, "epoch": 0, "step": 1}])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history.to_csv(f"{folder}/run.csv")
        ...     Path(folder, "run.csv").read_text().splitlines()
        ['loss,batch,epoch,validation/accuracy', '0.5,1,0,0.75']
        """
        from functrain.shell.csv_file import write_csv

        self.read()
        write_csv(Path(path), self.raw, self.validations)

    def to_tensorboard(self, log_dir: str | PathLike[str]) -> None:
        """Write every number for TensorBoard, over the micro-batches; needs the extra ``tensorboard``.

        The tags are ``training/<name>``, ``validation/<name>`` and ``skips/<hook>/<stage>``, which counts.

        Args:
            log_dir: the folder that ``tensorboard --logdir`` is given, or one inside it.

        Raises:
            ImportError: no tensorboard, with the line that installs it.
        """
        from functrain.shell.board import write_events

        self.read()
        write_events(log_dir, self.raw, self.validations)
