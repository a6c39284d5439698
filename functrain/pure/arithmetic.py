"""Arithmetic that rounds as the kernels of ``torch.optim`` do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def number(value: Any) -> Tensor:
    """Return a hyper-parameter as a 0-d double, a count as int64; a tensor stays, and may require a gradient.

    >>> number(0.1).dtype, number(0).dtype
    (torch.float64, torch.int64)
    """
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def checked(**numbers: Any) -> None:
    """Refuse hyper-parameters that are no numbers from 0 on; a beta has to be below 1. A tensor is not looked into.

    Raises:
        ValueError: which one it is, and what it was.

    >>> checked(lr=-1.0)
    Traceback (most recent call last):
    ...
    ValueError: lr must be a number from 0 on, got -1.0
    """
    for name, value in numbers.items():
        below = 1.0 if name.startswith("beta") else float("inf")
        if isinstance(value, Tensor) or callable(value):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < below:
            msg = f"{name} must be a number from 0 on{' and below 1' if below == 1.0 else ''}, got {value!r}"
            raise ValueError(msg)


def real(value: Any) -> Tensor:
    """Return a hyper-parameter as a 0-d double, also where it was written as an int.

    >>> real(1)
    tensor(1., dtype=torch.float64)
    """
    return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


def added(x: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
    """Return ``x + alpha * y`` with one rounding, bitwise ``x.add(y, alpha=float(alpha))``.

    ``add`` takes no tensor for alpha; ``addcmul`` runs the same fused multiply-add.

    >>> added(torch.ones(1), torch.ones(1), torch.tensor(0.5, dtype=torch.float64))
    tensor([1.5000])
    """
    return torch.addcmul(x, y, alpha.to(x.device, x.dtype))


def times(x: Tensor, factor: Tensor) -> Tensor:
    """Return ``x * factor`` in the dtype of ``x``.

    >>> times(torch.ones(1), torch.tensor(0.5, dtype=torch.float64))
    tensor([0.5000])
    """
    return x * factor.to(x.device, x.dtype)


def penalized(grad: Tensor, param: Tensor, weight_decay: Tensor) -> Tensor:
    """Return the gradient with an L2 penalty; without one as it is, also where a weight is not finite.

    Elsewhere the product is taken even without a penalty, since its derivative is wanted at 0, too.

    >>> penalized(torch.ones(1), torch.tensor([float("inf")]), torch.tensor(0.0, dtype=torch.float64))
    tensor([1.])
    """
    counts = torch.logical_or(weight_decay.to(grad.device) != 0, param.isfinite())
    return torch.where(counts, added(grad, torch.where(counts, param, 0.0), weight_decay), grad)
