"""Decisions that read the same for a Python bool (the shell) and for a 0-d bool tensor (the pure engine)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingModuleSource]

from functrain import _tree

Flag: TypeAlias = bool | Tensor
"""A decision: a Python bool, or a 0-d bool tensor."""

Number: TypeAlias = int | float | Tensor
"""A number that drives decisions: Python's in the shell, a 0-d int64 or float64 tensor in the pure engine."""

T = TypeVar("T")


def select(pred: Flag, then: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Return ``then()`` where ``pred``, else ``otherwise()``.

    A bool runs only one of the two thunks. A tensor runs both, which then must be pure, and picks leaf by leaf with
    ``torch.where``: NaN in the branch not taken does not leak, in contrast to multiplying by a mask.

    Args:
        pred: a bool or a 0-d bool tensor.
        then: gives a tree.
        otherwise: gives a tree of the same structure, shapes and dtypes.

    >>> select(True, lambda: 1, lambda: 1 / 0)
    1
    >>> select(torch.tensor(False), lambda: torch.tensor(float("nan")), lambda: torch.tensor(2.0))
    tensor(2.)
    """
    if isinstance(pred, bool):
        return then() if pred else otherwise()
    return cast("T", _tree.map_leaves(partial(_where, pred), then(), otherwise()))


def _where(pred: Tensor, a: Any, b: Any) -> Any:
    """Pick one leaf; a leaf that both branches share needs no picking."""
    if a is b or not isinstance(a, Tensor | bool | int | float):
        return a
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return a if a == b else torch.where(pred, wide(a, pred), wide(b, pred))
    return torch.where(pred, a, b)


def wide(number: Number, like: Tensor) -> Tensor:
    """Return a number as a tensor of Python's width (bool, int64 or float64) on the device of ``like``."""
    if isinstance(number, Tensor):
        return number
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64}
    return torch.tensor(number, dtype=kinds[type(number)], device=like.device)


def both(a: Flag, b: Flag) -> Flag:
    """Return ``a and b`` without a sync: False wins at once, a tensor makes the result a tensor.

    >>> both(True, False), both(torch.tensor(True), True)
    (False, tensor(True))
    """
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return torch.logical_and(a, b)


def either(a: Flag, b: Flag) -> Flag:
    """Return ``a or b`` without a sync.

    >>> either(False, torch.tensor(True))
    tensor(True)
    """
    if isinstance(a, bool):
        return True if a else b
    if isinstance(b, bool):
        return True if b else a
    return torch.logical_or(a, b)


def negate(a: Flag) -> Flag:
    """Return ``not a`` without a sync.

    >>> negate(True), negate(torch.tensor(True))
    (False, tensor(False))
    """
    return not a if isinstance(a, bool) else torch.logical_not(a)


def peek(flag: Flag) -> Flag:
    """Return a flag as a bool where reading it is free: on the CPU, outside any trace; else as it is.

    A decision about cost, never about results: both branches of what hangs on it give the same values.

    >>> peek(torch.tensor(True))
    True
    """
    return flag if isinstance(flag, bool) or not is_free(flag) else bool(flag)


def is_finite(number: Tensor) -> Flag:
    """Tell whether a 0-d tensor is finite: as a bool where reading it is free, else without a sync.

    >>> is_finite(torch.tensor(1.0))
    True
    """
    return math.isfinite(number.item()) if is_free(number) else number.isfinite()


def is_nan(number: Tensor) -> Flag:
    """Tell whether a 0-d tensor is NaN: as a bool where reading it is free, else without a sync.

    >>> is_nan(torch.tensor(float("nan")))
    True
    """
    return math.isnan(number.item()) if is_free(number) else number.isnan()


def is_free(tensor: Tensor) -> bool:
    """Tell whether reading a number off a tensor costs next to nothing: on the CPU, outside any trace.

    >>> is_free(torch.ones(1))
    True
    """
    return tensor.is_cpu and not torch.compiler.is_compiling() and not is_functorch_wrapped_tensor(tensor)


def beside(number: Number, tensor: Tensor) -> Any:
    """Return a number in the dtype and on the device of a tensor that it is about to meet; Python's as they are.

    Numbers are doubles; cast only here, since two 0-d tensors would promote to double and round elsewhere.

    >>> beside(torch.tensor(0.1, dtype=torch.float64), torch.ones(1)).dtype
    torch.float32
    """
    return number.to(tensor.device, tensor.dtype) if isinstance(number, Tensor) else number


def is_multiple(count: Number, n: Number) -> Flag:
    """Tell whether a count is a multiple of ``n``.

    >>> is_multiple(4, 2), is_multiple(5, 2)
    (True, False)
    """
    return count % n == 0  # pyright: ignore[reportReturnType] - a comparison of 0-d tensors is a 0-d bool tensor


def equal(a: Number, b: Number) -> Flag:
    """Tell whether two numbers are the same.

    >>> equal(1, 1), equal(torch.tensor(1), 2)
    (True, tensor(False))
    """
    return a == b  # pyright: ignore[reportReturnType] - a comparison of 0-d tensors is a 0-d bool tensor


def maximum(a: Number, b: Number) -> Number:
    """Return the larger of two numbers of either kind.

    >>> maximum(1.0, 2.0)
    2.0
    """
    return _extreme(a, b, max, torch.maximum)


def minimum(a: Number, b: Number) -> Number:
    """Return the smaller of two numbers of either kind.

    >>> minimum(torch.tensor(1.0), 2.0)
    tensor(1.)
    """
    return _extreme(a, b, min, torch.minimum)


def _extreme(
    a: Number,
    b: Number,
    plain: Callable[[Any, Any], Any],
    tensors: Callable[[Tensor, Tensor], Tensor],
) -> Number:
    """Apply the plain function to Python numbers, else the tensor one in the tensor's own dtype."""
    if isinstance(a, Tensor):
        return tensors(a, torch.as_tensor(b, dtype=a.dtype, device=a.device))
    if isinstance(b, Tensor):
        return tensors(torch.as_tensor(a, dtype=b.dtype, device=b.device), b)
    return plain(a, b)
