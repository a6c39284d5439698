"""A ring of the latest values, as a tensor of fixed length so that the structure of the state never changes."""

from __future__ import annotations

import torch
from torch import Tensor

from functrain._select import Number


def ring(length: int, device: torch.device) -> Tensor:
    """Return an empty ring: NaN stands for no value yet.

    >>> ring(2, torch.device("cpu"))
    tensor([nan, nan])
    """
    return torch.full((length,), float("nan"), dtype=torch.float32, device=device)


def filled(values: Tensor, seen: Number, value: Tensor) -> Tensor:
    """Return the ring with a value in the place of the oldest one.

    >>> filled(ring(2, torch.device("cpu")), 3, torch.tensor(5.0))
    tensor([nan, 5.])
    """
    place = torch.arange(len(values), device=values.device) == seen % len(values)
    return torch.where(place, value.to(values.dtype), values)


def quantile(values: Tensor, rank: Tensor | float) -> Tensor:
    """Return a quantile of the values in a ring, linear between neighbours; infinity where there are none.

    ``torch.nanquantile`` gives the same, but has no rule for ``vmap``.

    Args:
        values: 1-d; NaN stands for no value yet.
        rank: in [0, 1].

    >>> quantile(torch.tensor([3.0, float("nan"), 1.0]), 0.5)
    tensor(2.)
    """
    ordered = values.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("-inf")).sort().values
    place = rank * (values.isfinite().sum() - 1).clamp(min=0).to(values.dtype)
    below, above = place.floor(), place.ceil()
    low, high = (_picked(ordered, where) for where in (below, above))
    return torch.where(below == above, low, torch.lerp(low, high, place - below))


def _picked(values: Tensor, place: Tensor) -> Tensor:
    """Return the value at a place that is a tensor, without an index that ``vmap`` would have to read."""
    here = torch.arange(len(values), device=values.device) == place
    return torch.where(here, values, 0.0).sum()
