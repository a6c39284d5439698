"""Numbers as tensors: what drives decisions must not be a Python number in a compiled or vmapped step."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from functrain import _tree

WIDTHS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def tensored(tree: Any, device: torch.device | None = None) -> Any:
    """Return a tree whose Python numbers are 0-d tensors of their width: bool, int64, float64.

    A Python counter would recompile a step at every value; a tensor does not.

    >>> tensored({"n": 1, "on": True})
    {'n': tensor(1), 'on': tensor(True)}
    """
    return _tree.map_leaves(partial(_tensored, device), tree)


def _tensored(device: torch.device | None, leaf: Any) -> Any:
    dtype = WIDTHS.get(cast("type[Any]", type(leaf)))
    return leaf if dtype is None else torch.tensor(leaf, dtype=dtype, device=device)


def plain(tree: Any) -> Any:
    """Return a tree whose 0-d tensors of these widths are Python numbers again; reads the device.

    >>> plain({"n": torch.tensor(1)})
    {'n': 1}
    """
    return _tree.map_leaves(_plain, tree)


def _plain(leaf: Any) -> Any:
    return leaf.item() if is_number(leaf) else leaf


def is_number(leaf: Any) -> bool:
    """Tell a 0-d tensor of one of the widths."""
    return isinstance(leaf, Tensor) and leaf.ndim == 0 and leaf.dtype in WIDTHS.values()
