"""Randomness as data: numbers that depend on a seed, a batch and a call, and on nothing else.

torch draws from one stream, so under ``vmap`` a lane's numbers depend on how many lanes there are. Here each number is
a hash of its own coordinates: a sweep over seeds equals the loop over seeds.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

Shape: TypeAlias = "tuple[int, ...] | torch.Size"
MASK = 0xFFFFFFFF
WORD = 32
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""Binary digits of a significand: a uniform number has as many, so that it never rounds up to 1."""


class Noise:
    """The random numbers of one micro-batch; every call gives others.

    Two of the same coordinates give the same numbers. So a hook that draws adds a number of its own to the seed, and
    counts its draws in its slot: ``Noise(state.rng + 7, state.slot(name)["drawn"])``.

    Args:
        seed: an integer, ``state.rng``.
        batch: an integer, ``state.clock.batch``.

    >>> noise = Noise(0, 0)
    >>> noise.uniform((2,)).shape, bool(noise.uniform((1000,)).mean().sub(0.5).abs() < 0.05)
    (torch.Size([2]), True)
    """

    def __init__(self, seed: Tensor | int, batch: Tensor | int) -> None:
        """Remember the coordinates; calls are counted from 0, and nothing is computed before the first."""
        self._coordinates = seed, batch
        self._key: Tensor | None = None
        self._calls = 0

    def bits(self, shape: Shape) -> Tensor:
        """Return int64 numbers that are uniform in [0, 2^32)."""
        key = self._mixed_key()
        self._calls += 1
        place = torch.arange(1, 1 + math.prod(shape), device=key.device)
        return _mixed(_mixed(key ^ _constant(self._calls)) ^ _mixed(place)).reshape(shape)

    def _mixed_key(self) -> Tensor:
        """Mix seed and batch, once."""
        self._key = _key(*self._coordinates) if self._key is None else self._key
        return self._key

    def spread(self, x: Tensor) -> Tensor:
        """Return a copy of ``x`` that has the lanes of the seed, so that noise can be written into it."""
        return torch.where(self._mixed_key().to(x.device) >= 0, x, x)

    def uniform(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return numbers uniform in [0, 1)."""
        digits = DIGITS[dtype]
        if digits <= WORD:
            return (self.bits(shape) >> (WORD - digits)).to(dtype) * 2.0**-digits
        high, low = self.bits(shape), self.bits(shape) >> (2 * WORD - digits)
        return (high.to(dtype) * 2.0 ** (digits - WORD) + low.to(dtype)) * 2.0**-digits

    def normal(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return standard normal numbers (Box and Muller)."""
        wide = torch.promote_types(dtype, torch.float32)
        radius = (-2.0 * torch.log1p(-self.uniform(shape, wide))).sqrt()
        return (radius * torch.cos(2.0 * torch.pi * self.uniform(shape, wide))).to(dtype)

    def keep(self, shape: Shape, p: float | Tensor) -> Tensor:
        """Return bools that are True with probability ``p``."""
        bits = self.bits(shape)
        if isinstance(p, Tensor):
            return bits < (p.to(bits.device, torch.float64) * 2.0**WORD).round().long()
        return bits < round(p * 2.0**WORD)


class Missing(Noise):
    """No noise: whoever draws is told what to pass."""

    def __init__(self) -> None:
        super().__init__(0, 0)

    def bits(self, shape: Shape) -> Tensor:
        """Refuse.

        Raises:
            ValueError: always.
        """
        msg = (
            f"the modules draw random numbers of shape {tuple(shape)}, so the loss needs a fourth argument, "
            "loss(params, buffers, batch, functrain.pure.Noise(seed, batch_number)), or modules in eval mode"
        )
        raise ValueError(msg)

    def spread(self, x: Tensor) -> Tensor:
        """Return ``x``: nothing will be written into it."""
        return x


def _key(seed: Tensor | int, batch: Tensor | int) -> Tensor:
    """Mix all 64 bits of the seed, and the number of the batch."""
    seed, batch = torch.as_tensor(seed), torch.as_tensor(batch)
    return _mixed(_mixed(_mixed(seed >> WORD) ^ (seed & MASK)) ^ (batch * 0x9E3779B9 & MASK))


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
