"""Randomness as data: numbers that depend on a seed, a batch and a call, and on nothing else.

torch draws from one stream, so under ``vmap`` a lane's numbers depend on how many lanes there are. Here each number is
a hash of its own coordinates: a sweep over seeds equals the loop over seeds.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Shape: TypeAlias = "tuple[int, ...] | torch.Size"
MASK = 0xFFFFFFFF


class Noise:
    """The random numbers of one micro-batch; every call gives others.

    Args:
        seed: 0-d int64, ``state.rng``.
        batch: 0-d int64, ``state.clock.batch``.

    >>> noise = Noise(torch.tensor(0), torch.tensor(0))
    >>> noise.uniform((2,)).shape, bool(noise.uniform((1000,)).mean().sub(0.5).abs() < 0.05)
    (torch.Size([2]), True)
    """

    def __init__(self, seed: Tensor, batch: Tensor) -> None:
        """Mix seed and batch into one key; calls are counted from 0."""
        self._key = _mixed(_mixed(seed) ^ (batch * 0x9E3779B9 & MASK))
        self._calls = 0

    def bits(self, shape: Shape) -> Tensor:
        """Return int64 numbers that are uniform in [0, 2^32)."""
        self._calls += 1
        count = torch.Size(shape).numel()
        place = torch.arange(count, device=self._key.device)
        return _mixed(_mixed(self._key ^ _constant(self._calls)) ^ _mixed(place + 1)).reshape(shape)

    def uniform(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return numbers uniform in [0, 1)."""
        return (self.bits(shape) >> 8).to(dtype) * 2.0**-24

    def normal(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return standard normal numbers (Box and Muller)."""
        radius = (-2.0 * torch.log1p(-self.uniform(shape, dtype))).sqrt()
        return radius * torch.cos(2.0 * torch.pi * self.uniform(shape, dtype))

    def keep(self, shape: Shape, p: float) -> Tensor:
        """Return bools that are True with probability ``p``."""
        return self.uniform(shape, torch.float64) < p


def _constant(call: int) -> int:
    """Return the hash of a call number; known before anything runs."""
    x = call & MASK
    for factor in (0x7FEB352D, 0x846CA68B):
        x = ((x ^ (x >> 16)) * factor) & MASK
    return x ^ (x >> 16)


def _mixed(x: Tensor) -> Tensor:
    """Return a bijective hash of 32 bits held in int64, so that products do not leave 64 bits.

    Source: Wellons' ``lowbias32``, https://nullprogram.com/blog/2018/07/31/.
    """
    x = x & MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)
