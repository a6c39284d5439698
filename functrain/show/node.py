"""What is to be seen, before it is text or HTML: a tree of lines, and a grid of cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Node:
    """A line, and the lines below it.

    Attributes:
        label: what it is; in a state its path as source text.
        note: what there is to say about it.
        children: lines below, which HTML folds away.
        is_open: whether HTML shows them at first.

    >>> Node("state.clock", "2 fields").children
    ()
    """

    label: str
    note: str = ""
    children: tuple[Node, ...] = ()
    is_open: bool = False


@dataclass(frozen=True)
class Grid:
    """Rows of cells under headings, and sentences below them.

    Attributes:
        heads: the headings; the first is that of the row names.
        rows: texts, each row as long as the headings.
        warnings: what is wrong or needs a look, one sentence each.
        colours: behind cells of a certain text, in HTML.
        notes: sentences that are no warnings.

    >>> Grid(("stage", "clip"), (("DO_OPTIMIZER_STEP", "x"),)).warnings
    ()
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...] = ()
    colours: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()

    def with_warnings(self, *sentences: str) -> Grid:
        """Return the grid with more warnings."""
        return replace(self, warnings=(*self.warnings, *sentences))


@dataclass(frozen=True)
class Panels:
    """Grids beside each other, each under a title.

    Attributes:
        parts: titles and grids.

    >>> Panels((("recorded", Grid(("batch",), ())),)).parts[0][0]
    'recorded'
    """

    parts: tuple[tuple[str, Grid], ...]
