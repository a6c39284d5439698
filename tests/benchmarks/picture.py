"""The ratios of a part as horizontal bars, a panel for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import Row

OURS, OTHERS = "#1f6f8b", "#b8c4cc"


def drawn(title: str, ratio: str, base: str, groups: Mapping[str, Sequence[Row]], file: Path) -> None:
    """Write a picture of the ratio that a key holds to a file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "figure.facecolor": "white", "axes.facecolor": "white"}):
        shown = {name: [row for row in rows if ratio in row] for name, rows in groups.items()}
        heights = [max(len(rows), 1) for rows in shown.values()]
        figure = Figure(figsize=(9, 1.2 + sum(0.26 * each + 0.55 for each in heights)), layout="constrained")
        figure.suptitle(f"{title}: time as a multiple of {base}, log scale")
        axes = figure.subplots(len(shown), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for panel, (name, rows) in zip(axes, shown.items(), strict=True):
            panel.set_title(name, loc="left", fontsize=9, fontweight="bold")
            _panel(panel, rows, ratio)
        figure.savefig(file, dpi=150)


def _panel(axes: Any, rows: Sequence[Row], ratio: str) -> None:
    """Draw the bars of one model, from 1 to the left where faster and to the right where slower."""
    values = [row[ratio] for row in rows]
    colours = [OURS if row["contender"].startswith("functrain") else OTHERS for row in rows]
    names = [row["contender"] for row in rows]
    bars = axes.barh(names, [value - 1 for value in values], left=1, color=colours)
    axes.bar_label(bars, [f" {value:.2f} " for value in values], fontsize=8)
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.set_xscale("log", subs=[2, 5])
    for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        ticks("{x:g}")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
