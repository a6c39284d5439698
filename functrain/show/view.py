"""What the functions of ``functrain.show`` return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from functrain.show.html import grid_html, page, tree_html
from functrain.show.node import Grid, Node
from functrain.show.text import grid_text, tree_text


@dataclass(frozen=True, repr=False)
class View:
    """One description, which prints as text and shows as HTML in a notebook.

    Attributes:
        shown: a tree or a grid.

    >>> View(Node("state.rng", "() int64 cpu"))
    state.rng  () int64 cpu
    """

    shown: Node | Grid

    def __str__(self) -> str:
        """Return the text."""
        return tree_text(self.shown) if isinstance(self.shown, Node) else grid_text(self.shown)

    __repr__ = __str__

    def html(self) -> str:
        """Return the HTML, without a script."""
        return page(tree_html(self.shown) if isinstance(self.shown, Node) else grid_html(self.shown))

    _repr_html_ = html


def safely(build: Callable[[], Node | Grid]) -> View:
    """Return a view of what is built; of an error its name, since looking must not stop a program.

    >>> safely(lambda: Node(str(1 / 0)))
    cannot be shown  ZeroDivisionError: division by zero
    """
    try:
        return View(build())
    except Exception as error:  # noqa: BLE001 - see above
        return View(Node("cannot be shown", f"{type(error).__name__}: {error}"))
