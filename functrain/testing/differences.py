"""Where two states differ, one line a leaf, and the error that says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isnan
from typing import Any

import torch
from torch import Tensor

from functrain._tree import paths
from functrain.pure.numbers import is_number

MISSING = "missing"


class Disagreement(AssertionError):  # noqa: N818 - what it is, as Hypothesis names its own
    """Two runs that had to be the same are not.

    Attributes:
        what: which two, and after what.
        lines: ``path: one != other`` for each leaf.

    >>> print(Disagreement("shell and pure", ["state.clock.step: 1 != 2"]))
    shell and pure differ:
      state.clock.step: 1 != 2
    """

    def __init__(self, what: str, lines: list[str]) -> None:
        """Keep the lines, and print them."""
        super().__init__(what, lines)
        self.what, self.lines = what, lines

    def __str__(self) -> str:
        """Print every line."""
        return f"{self.what} differ:\n  " + "\n  ".join(self.lines)


def require_none(what: str, lines: Iterable[str]) -> None:
    """Raise if there are any differences.

    Raises:
        Disagreement: with all of them.

    >>> require_none("shell and pure", [])
    """
    if found := list(lines):
        raise Disagreement(what, found)


def unlike(first: Any, second: Any, root: str, tolerance: float = 0.0) -> Iterator[str]:
    """Yield ``path: one != other`` for every leaf that differs; numbers and 0-d tensors of the same value do not.

    Args:
        first: a tree, in either form.
        second: another.
        root: what the paths begin with.
        tolerance: relative and absolute, for real numbers and tensors; 0 for exactly the same values.

    >>> list(unlike({"step": 1, "scale": 2.0}, {"step": torch.tensor(2), "scale": 2.0}, "state"))
    ['state["step"]: 1 != 2']
    >>> list(unlike({"w": torch.tensor([0.3])}, {"w": torch.tensor([0.3 + 3e-8])}, "state"))
    ['state["w"]: tensor([0.3000]) != tensor([0.3000]), by at most 2.98e-08']
    """
    ours, theirs = paths(first, root), paths(second, root)
    for path in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(path, MISSING), theirs.get(path, MISSING)
        if not alike(one, other, tolerance):
            yield f"{path}: {_told(one, other)}"


def _told(one: Any, other: Any) -> str:
    """Return both values, with the digits in which they differ."""
    if str(one) != str(other):
        return f"{one} != {other}"
    if not (isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape):
        return f"{one!r} != {other!r}"
    apart = (one.to(torch.complex128) - other.to(torch.complex128)).abs().nan_to_num().max().item()
    return f"{one} != {other}, by at most {apart:.3g}"


def alike(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Compare two leaves: numbers by value in either form, tensors by dtype, shape and value; NaN equals NaN.

    >>> alike(1, torch.tensor(1)), alike(torch.tensor([0.1]), torch.tensor([0.1]).double())
    (True, False)
    """
    one, other = (leaf.item() if is_number(leaf) else leaf for leaf in (one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _close(one, other, tolerance)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or (isnan(one) and isnan(other)) or _near(one, other, tolerance)
    return type(one) is type(other) and one == other


def _near(one: float, other: float, tolerance: float) -> bool:
    """Compare real numbers; counts have to be the same."""
    real = isinstance(one, float) and isinstance(other, float)
    return real and abs(one - other) <= tolerance * max(abs(other), 1.0)


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    one, other = one.detach(), other.detach()
    if not one.is_floating_point() and not one.is_complex():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
