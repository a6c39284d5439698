"""What the functions of ``functrain.show`` return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from functrain.show.html import grid_html, page, panels_html, tree_html
from functrain.show.node import Grid, Node, Panels
from functrain.show.text import grid_text, panels_text, tree_text


@dataclass(frozen=True, repr=False)
class View:
    """One description, which prints as text and shows as HTML in a notebook.

    Attributes:
        shown: a tree, a grid, or several grids.

    >>> View(Node("state.rng", "() int64 cpu"))
    state.rng  () int64 cpu
    """

    shown: Node | Grid | Panels

    def __str__(self) -> str:
        """Return the text."""
        if isinstance(self.shown, Panels):
            return panels_text(self.shown)
        return tree_text(self.shown) if isinstance(self.shown, Node) else grid_text(self.shown)

    __repr__ = __str__

    def html(self) -> str:
        """Return the HTML, without a script."""
        if isinstance(self.shown, Panels):
            return page(panels_html(self.shown))
        return page(tree_html(self.shown) if isinstance(self.shown, Node) else grid_html(self.shown))

    _repr_html_ = html


def safely(build: Callable[[], Node | Grid | Panels]) -> View:
    """Return a view of what is built; of an error its name, since looking must not stop a program.

    >>> safely(lambda: Node(str(1 / 0)))
    cannot be shown  ZeroDivisionError: division by zero
    """
    try:
        return View(build())
    except Exception as error:  # noqa: BLE001 - see above
        return View(Node("cannot be shown", f"{type(error).__name__}: {error}"))
