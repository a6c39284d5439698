"""Comparison up to rounding: decisions and counters exactly, real numbers nearly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from functrain import Outcome
from functrain._tree import paths
from functrain.testing.breach import MISSING, Breach

NEAR = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative tolerance by dtype; 1e-5 for the others."""


def near(dtype: torch.dtype) -> float:
    """Return how far numbers of a dtype may be apart, relatively.

    >>> near(torch.float32), near(torch.float64)
    (1e-05, 1e-12)
    """
    return NEAR.get(dtype, 1e-5)


def is_close(expected: Any, found: Any) -> bool:
    """Tell whether two leaves are the same up to rounding; what is not real must be the same.

    >>> is_close(torch.tensor(1.0), torch.tensor(1.000001)), is_close(torch.tensor(1), torch.tensor(2))
    (True, False)
    """
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        return type(expected) is type(found) and bool(expected == found)
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    if not expected.is_floating_point() and not expected.is_complex():
        return torch.equal(expected, found)
    tolerance = near(expected.dtype)
    return torch.allclose(expected, found, rtol=tolerance, atol=tolerance, equal_nan=True)


def require_close(expected: Outcome, found: Outcome, what: str) -> None:
    """Raise at the first leaf at which two outcomes are apart.

    Raises:
        Breach: with the path and both values.
    """
    for name in Outcome._fields:
        ours, theirs = (paths(getattr(each, name), name) for each in (expected, found))
        for path in dict.fromkeys((*ours, *theirs)):
            one, other = ours.get(path, MISSING), theirs.get(path, MISSING)
            if not is_close(one, other):
                raise Breach(what, path, one, other)
