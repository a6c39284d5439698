"""What the picture of a run shows of its validations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from functrain.shell.panels import drawable, is_finite
from functrain.shell.validation_place import batches_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLACES = ("epoch", "step", "validated_with")
RAW = "raw"


def draw_scores(axes: Axes, validations: list[dict[str, Any]], records: list[dict[str, Any]]) -> None:
    """Draw a line for each score, with full marks where averaged weights were looked at and empty ones elsewhere."""
    at = batches_of(validations, records)
    for name in dict.fromkeys(key for each in validations for key in each if key not in PLACES):
        scores = [_number(each.get(name)) for each in validations]
        (line,) = axes.plot(at, scores, linewidth=0.9, label=name)
        _mark(axes, line.get_color(), list(zip(at, scores, validations, strict=True)))
    for averaged, face, told in ((False, "white", "raw weights"), (True, "gray", "averaged weights")):
        if any("validated_with" in each and _is_averaged(each) is averaged for each in validations):
            axes.scatter([], [], s=22, edgecolors="gray", facecolors=face, label=told)
    axes.set_ylabel("validation score")


def _mark(axes: Axes, color: Any, points: list[tuple[Any, float, dict[str, Any]]]) -> None:
    """Mark what was measured."""
    for averaged in (False, True):
        found = [(x, y) for x, y, each in points if _is_averaged(each) is averaged]
        if found:
            face = color if averaged else "white"
            axes.scatter(*zip(*found, strict=True), s=22, edgecolors=color, facecolors=face, zorder=3)


def _is_averaged(validation: dict[str, Any]) -> bool:
    """Tell whether averaged weights were looked at, of any model."""
    told: Any = validation.get("validated_with", RAW)
    used = cast("dict[str, Any]", told).values() if isinstance(told, dict) else [told]
    return any(each != RAW for each in used)


def _number(value: Any) -> float:
    """Return a finite number; NaN, which is a gap in a line, for anything else."""
    return drawable(value) if is_finite(value) else math.nan
