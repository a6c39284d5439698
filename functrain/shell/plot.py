"""The picture of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from functrain.shell.panels import draw_loss, draw_norm, draw_scale, draw_skips
from functrain.shell.record import SKIPPED_BY
from functrain.shell.scores import draw_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from functrain.shell.history import History

LEGEND: dict[str, Any] = {"frameon": False, "fontsize": "small"}
Panel: TypeAlias = "tuple[Callable[[Axes], None], float]"
"""What draws into axes, and how high they are beside others."""


def draw(history: History) -> Figure:
    """Return a figure with one panel for each kind of number that the run has, over its micro-batches."""
    from functrain.show.picture import Picture

    panels = _panels(history.to_records(), history.validations) or [(_say_nothing, 1.0)]
    heights = [height for _, height in panels]
    figure = Picture(figsize=(9, 0.6 + 2.0 * sum(heights)), layout="constrained")
    drawn = figure.subplots(len(panels), squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})
    for axes, (panel, _) in zip(drawn.flat, panels, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        panel(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, ncols=6, **LEGEND)
    drawn.flat[-1].set_xlabel("micro-batches seen")
    return figure


def _panels(records: list[dict[str, Any]], validations: list[dict[str, Any]]) -> list[Panel]:
    """Return the panels that have something to show."""
    kinds: list[tuple[Any, Panel]] = [
        (_numbers(records, "loss"), (lambda axes: draw_loss(axes, records), 1.3)),
        (_numbers(records, "grad_norm"), (lambda axes: draw_norm(axes, records), 1.0)),
        (_numbers(records, "scale"), (lambda axes: draw_scale(axes, records), 0.8)),
        (any(each.get(SKIPPED_BY) for each in records), (lambda axes: draw_skips(axes, records), 0.7)),
        (validations, (lambda axes: draw_scores(axes, validations, records), 1.0)),
    ]
    return [panel for found, panel in kinds if found]


def _numbers(records: list[dict[str, Any]], name: str) -> bool:
    return any(isinstance(each.get(name), int | float) for each in records)


def _say_nothing(axes: Axes) -> None:
    """Say that there is nothing to draw."""
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.text(0.5, 0.5, "nothing has been recorded", ha="center", va="center", transform=axes.transAxes)
    axes.set_yticks([])
