"""The picture of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from functrain.shell.history import History

PLACES = ("epoch", "step", "validated_with")
KINDS = ("DO_BACKWARD", "DO_OPTIMIZER_STEP")


def draw(history: History) -> Figure:
    """Return a figure with one panel per kind of number that the run has."""
    from matplotlib.figure import Figure

    records = history.to_records()
    panels = [_draw_loss, *([_draw_norm] if any("grad_norm" in each for each in records) else [])]
    if history.validations:
        panels.append(lambda axes, records: _draw_scores(axes, history.validations))  # noqa: ARG005 - a panel
    figure = Figure(figsize=(9, 2.6 * len(panels)), layout="constrained")
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False).flat, panels, strict=True):
        panel(axes, records)
    return figure


def _draw_loss(axes: Axes, records: list[dict[str, Any]]) -> None:
    """Draw the raw loss, and mark what was dropped and skipped."""
    _line(axes, records, "loss")
    for kind, color, label in zip(KINDS, ("tab:red", "tab:orange"), ("dropped", "skipped"), strict=True):
        hit = [each["batch"] for each in records if any(kind in reason for reason in each["skipped_by"])]
        for place, batch in enumerate(hit):
            axes.axvline(batch, color=color, alpha=0.5, label=label if place == 0 else None)
    _finish(axes, "loss")


def _draw_norm(axes: Axes, records: list[dict[str, Any]]) -> None:
    """Draw the gradient norm before clipping."""
    _line(axes, records, "grad_norm")
    _finish(axes, "gradient norm")


def _line(axes: Axes, records: list[dict[str, Any]], name: str) -> None:
    """Draw the finite values of one number over the micro-batches."""
    found = [(each["batch"], each[name]) for each in records if math.isfinite(each.get(name, math.nan))]
    axes.plot([x for x, _ in found], [y for _, y in found], linewidth=0.8)
    if found and min(y for _, y in found) > 0:
        axes.set_yscale("log")


def _draw_scores(axes: Axes, validations: list[dict[str, Any]]) -> None:
    """Draw each score of the validations over the epochs."""
    names = dict.fromkeys(key for each in validations for key in each if key not in PLACES)
    for name in names:
        scores = [each.get(name, math.nan) for each in validations]
        axes.plot([each["epoch"] for each in validations], scores, "o-", label=name)
    _finish(axes, "validation", x="epoch")


def _finish(axes: Axes, label: str, x: str = "micro-batch") -> None:
    """Label the axes."""
    axes.set_ylabel(label)
    axes.set_xlabel(x)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right")
