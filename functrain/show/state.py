"""A state as a tree that folds."""

from __future__ import annotations

from typing import Any

from functrain.show.branches import branches
from functrain.show.leaf import leaf_note
from functrain.show.node import Node
from functrain.show.view import View, safely


def state(tree: Any, *, stats: bool = False, root: str = "state") -> View:
    """Show a state: paths as source text, shapes, dtypes, devices; never raises, and asks no device for a value.

    Args:
        tree: a ``TrainState``, or any tree of mappings and sequences.
        stats: also values of 0-d tensors and norms of larger ones, which waits for the device.
        root: what the paths begin with.

    >>> import torch
    >>> from functrain import show
    >>> show.state({"weight": torch.ones(2), "step": 3}, root="tree", stats=True)
    tree  2 entries
      tree["weight"]  (2,) float32 cpu norm=1.414
      tree["step"]  3
    """
    return safely(lambda: tree_node(tree, root, stats=stats, is_open=True))


def tree_node(tree: Any, path: str, *, stats: bool = False, is_open: bool = False) -> Node:
    """Return the description of a tree; only the first level is open.

    >>> tree_node((), "state.limits").note
    'empty'
    """
    below = branches(tree, path)
    if below is None:
        return Node(path, leaf_note(tree, stats=stats))
    children = tuple(tree_node(value, child, stats=stats) for child, value in below)
    return Node(path, _counted(len(children)), children, is_open)


def _counted(count: int) -> str:
    return "empty" if not count else f"{count} {'entry' if count == 1 else 'entries'}"
