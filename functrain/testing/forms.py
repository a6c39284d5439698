"""Two forms of one state: Python numbers as in the shell, 0-d tensors as in the engine; and what counts of a leaf."""

from __future__ import annotations

import struct
from typing import Any, Literal

import torch
from torch import Tensor

from functrain._tree import map_leaves

Form = Literal["python", "tensor"]
WIDTHS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def as_tensor(number: Any) -> Any:
    """Return a Python number as a 0-d tensor of Python's width; anything else as it is.

    >>> as_tensor(0.5), as_tensor(True), as_tensor("text")
    (tensor(0.5000, dtype=torch.float64), tensor(True), 'text')
    """
    return torch.tensor(number, dtype=WIDTHS[type(number)]) if type(number) in WIDTHS else number


def in_form(tree: Any, form: Form) -> Any:
    """Return a tree with its numbers in a form: what ``init`` and every fold do in the pure engine."""
    return map_leaves(as_tensor, tree) if form == "tensor" else tree


def cloned(tree: Any) -> Any:
    """Return a tree that shares no tensor, and no mapping, with the original."""
    return map_leaves(_copied, tree)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def bits(leaf: Any) -> Any:
    """Return what must be equal for two leaves to be bitwise equal; all NaN are one.

    >>> bits(torch.tensor([0.0])) == bits(torch.tensor([-0.0]))
    False
    """
    if isinstance(leaf, float):
        return "float", struct.pack("d", leaf) if leaf == leaf else "nan"  # noqa: PLR0124 - NaN
    if not isinstance(leaf, Tensor):
        return type(leaf).__name__, leaf
    plain = torch.view_as_real(leaf.detach().resolve_conj()) if leaf.is_complex() else leaf.detach()
    if plain.is_floating_point():
        plain = torch.where(plain.isnan(), torch.full_like(plain, float("nan")), plain)
    raw: Any = plain.contiguous().reshape(-1)
    return leaf.dtype, tuple(leaf.shape), bytes(raw.view(torch.uint8).tolist()) if raw.numel() else b""
