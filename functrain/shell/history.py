"""What a run looked like: one record per micro-batch, kept on the device until somebody reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from functrain._state import TrainState
from functrain.shell.fetching import kept
from functrain.shell.record import read_records, record_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNREAD = 1000
"""So many records may wait on the device; then they are read by themselves, which bounds the memory they take."""


@dataclass
class History:
    """Records of a run, in order.

    Nothing is read from a device while a run is recorded, but for one transfer in a thousand micro-batches. What is
    waiting is read at once, by one transfer from each device, and then stays read.

    Attributes:
        raw: one dict per micro-batch; tensors stay tensors until somebody reads the history.
        validations: one dict per validation; ``validated_with`` says which average was looked at, or "raw".

    >>> History().to_records()
    []
    """

    raw: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    validations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

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
        """Draw loss, gradient norm, skips and validation scores; needs the extra ``plot``.

        Args:
            path: where to write the picture, too.
        """
        from functrain.shell.plot import draw

        figure = draw(self)
        if path is not None:
            figure.savefig(path)
        return figure
