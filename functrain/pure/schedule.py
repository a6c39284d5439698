"""Schedules: a learning rate as a function of the count of executed steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from functrain._select import Number

Schedule: TypeAlias = Callable[[Tensor], Any]
"""Maps the 0-d int64 count of steps before this one to a learning rate; must be pure."""


def at(lr: Number | Schedule, state: Any) -> Tensor:
    """Return the learning rate of the step under way: of a schedule its value, else the number in the state."""
    rate: Any = lr(state["step"]) if callable(lr) else state["lr"]
    return torch.as_tensor(rate, dtype=torch.float64)


def warmup_cosine(peak: float, warmup: int, total: int, floor: float = 0.0) -> Schedule:
    """Return a schedule that rises linearly to ``peak`` and falls along a cosine to ``floor``.

    Args:
        peak: largest learning rate.
        warmup: steps of the rise.
        total: steps until the floor.
        floor: learning rate from there on.

    Raises:
        ValueError: the rise does not lie within the steps.

    Source: Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983, equation 5.

    >>> schedule = warmup_cosine(1.0, 2, 4)
    >>> [round(float(schedule(torch.tensor(step))), 2) for step in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if not 0 <= warmup <= total:
        msg = f"warmup must be from 0 to total={total}, got {warmup}"
        raise ValueError(msg)

    def schedule(step: Tensor) -> Tensor:
        rise = (step + 1).double() / max(warmup, 1)
        progress = ((step - warmup).double() / max(total - warmup, 1)).clamp(0.0, 1.0)
        # A lerp is exact at both ends, where floor + (peak - floor) * 1 may round past the peak.
        top, bottom = torch.full_like(progress, peak), torch.full_like(progress, floor)
        fall = torch.lerp(top, bottom, (1.0 - torch.cos(torch.pi * progress)) / 2.0)
        return torch.where(step < warmup, peak * rise, fall)

    return schedule
