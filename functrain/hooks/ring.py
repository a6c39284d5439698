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
    return torch.full((length,), float("nan"), device=device)


def filled(values: Tensor, seen: Number, value: Tensor) -> Tensor:
    """Return the ring with a value in the place of the oldest one.

    >>> filled(ring(2, torch.device("cpu")), 3, torch.tensor(5.0))
    tensor([nan, 5.])
    """
    place = torch.arange(len(values), device=values.device) == seen % len(values)
    return torch.where(place, value.to(values.dtype), values)
