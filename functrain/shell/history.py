"""What a run looked like: one record per micro-batch, kept on the device until somebody reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from functrain._stage import GATED_STAGES, Stage
from functrain._state import TrainState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class History:
    """Records of a run, in order.

    Attributes:
        raw: one dict per micro-batch; tensors are still tensors.
        validations: one dict per validation; ``validated_with`` says which average was looked at, or "raw".

    >>> History().to_records()
    []
    """

    raw: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    validations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def record(self, state: TrainState) -> None:
        """Keep what one micro-batch did; reads no device."""
        clock = state.clock
        counts = {"epoch": clock.epoch, "batch": clock.batch, "step": clock.step, "skipped": clock.skipped}
        numbers = {
            "loss": state.raw_loss,
            "final_loss": state.loss,
            "lr": _learning_rate(state),
            **state.metrics,
        }
        if state.scaler:
            numbers["scale"] = state.scaler["scale"]
        self.raw.append({**numbers, **counts, "stepped": any(state.stepped.values()), "skipped_by": reasons(state)})

    def record_validation(self, state: TrainState, summary: dict[str, Any]) -> None:
        """Keep what a validation found, and when."""
        self.validations.append({**summary, "epoch": state.clock.epoch, "step": state.clock.step})

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records with all tensors read."""
        return self.to_records()

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dict of plain numbers per micro-batch, ready for a data frame."""
        return [{name: read(value) for name, value in each.items()} for each in self.raw]

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


def reasons(state: TrainState) -> tuple[str, ...]:
    """Return who skipped what in this batch, as "hook@STAGE"; waiting in a window and keeping gradients are no skips.

    >>> reasons(TrainState())
    ()
    """
    gated = [stage for stage in Stage if stage in GATED_STAGES and stage is not Stage.BEFORE_BATCH]
    vetoes = [(stage, name) for stage in gated for name, flag in state.vetoes.get(stage, {}).items() if bool(flag)]
    waiting = (Stage.DO_OPTIMIZER_STEP, "accumulate") if not state.window.boundary else None
    return tuple(f"{name}@{stage.name}" for stage, name in vetoes if (stage, name) != waiting)


def _learning_rate(state: TrainState) -> Any:
    """Return the learning rate of the first group."""
    rates: list[Any] = [numbers.get("lr") for groups in state.hyper.values() for numbers in groups.values()]
    return rates[0] if rates else None


def read(value: Any) -> Any:
    """Return a tensor's number; anything else as it is."""
    return value.item() if isinstance(value, Tensor) else value
