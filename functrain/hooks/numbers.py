"""Arithmetic on the numbers of averages, in double, that is the same for Python's numbers and for 0-d tensors."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from functrain._select import Number


def real(count: Number) -> Number:
    """Return a count as a double: torch divides whole numbers in single precision.

    >>> real(3), real(torch.tensor(3)).dtype
    (3.0, torch.float64)
    """
    return count.to(torch.float64) if isinstance(count, Tensor) else float(count)


def power(base: Number, exponent: Number) -> Number:
    """Return ``base ** exponent``.

    >>> power(4.0, 0.5), power(0.5, torch.tensor(2.0, dtype=torch.float64))
    (2.0, tensor(0.2500, dtype=torch.float64))
    """
    if isinstance(base, Tensor) or isinstance(exponent, Tensor):
        return cast("Any", torch).pow(base, exponent)
    return math.pow(base, exponent)
