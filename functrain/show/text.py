"""Descriptions as plain text, for terminals and log files."""

from __future__ import annotations

from collections.abc import Iterator

from functrain.show.node import Grid, Node, Panels


def tree_text(node: Node) -> str:
    """Return a tree as lines, each level indented by two more spaces.

    >>> print(tree_text(Node("state", "1 field", (Node("state.rng", "() int64 cpu"),))))
    state  1 field
      state.rng  () int64 cpu
    """
    return "\n".join(_lines(node, ""))


def _lines(node: Node, indent: str) -> Iterator[str]:
    """Yield the line of a node, then those below it."""
    yield f"{indent}{node.label}  {node.note}".rstrip()
    for child in node.children:
        yield from _lines(child, indent + "  ")


def grid_text(grid: Grid) -> str:
    """Return a grid as aligned columns, and its warnings below.

    >>> print(grid_text(Grid(("stage", "clip"), (("DO_BACKWARD", "."),), ("look here",))))
    stage        clip
    -----------  ----
    DO_BACKWARD  .
    ! look here
    """
    if grid.notes and not grid.rows:
        return "\n".join([*grid.notes, *(f"! {each}" for each in grid.warnings)])
    table = [grid.heads, *grid.rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(grid.heads))]
    lines = [grid.heads, tuple("-" * width for width in widths), *grid.rows]
    laid = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines]
    return "\n".join([*laid, *grid.notes, *(f"! {each}" for each in grid.warnings)])


def panels_text(panels: Panels) -> str:
    """Return grids below each other, each under its title.

    >>> print(panels_text(Panels((("recorded", Grid(("batch", "0"), (("clip", "x"),))),))))
    recorded
    batch  0
    -----  -
    clip   x
    """
    return "\n\n".join(f"{title}\n{grid_text(grid)}" for title, grid in panels.parts)
