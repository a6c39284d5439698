"""A pipeline as a stage-by-hook table in plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functrain._stage import Stage

if TYPE_CHECKING:
    from functrain._fold import Pipeline


def pipeline_table(pipeline: Pipeline) -> str:
    """Return one row per claimed stage and one column per hook, in dispatch order.

    >>> from functrain import ClipNorm, EMA, fold
    >>> print(fold(EMA(), ClipNorm(max_norm=1.0)))
    stage                 30 clip  50 ema
    --------------------  -------  ------
    DO_OPTIMIZER_STEP        x       .
    AFTER_OPTIMIZER_STEP     .       x
    """
    members = list(pipeline)
    heads = [f"{each.priority} {each.name}" for each in members]
    claimed = [stage for stage in Stage if pipeline.claimants(stage)]
    width = max((len(stage.name) for stage in claimed), default=len("stage"))
    rows = [
        _row("stage", heads, heads, width),
        _row("-" * width, ["-" * len(head) for head in heads], heads, width),
    ]
    marks = {stage: ["x" if stage in each.stages else "." for each in members] for stage in claimed}
    return "\n".join([*rows, *(_row(stage.name, marks[stage], heads, width) for stage in claimed)])


def _row(first: str, cells: list[str], heads: list[str], width: int) -> str:
    """Lay out one line of the table."""
    placed = [cell.center(len(head)) for cell, head in zip(cells, heads, strict=True)]
    return "  ".join([first.ljust(width), *placed]).rstrip()
