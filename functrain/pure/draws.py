"""What torch's random functions do, with the randomness of a :class:`Noise`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from functrain.pure.attention import attention
from functrain.pure.noise import Noise

Shape: TypeAlias = tuple[int, ...]
Factors: TypeAlias = Callable[[Tensor, float], tuple[Tensor, Tensor | None]]
"""Takes what is kept (ones and zeros) and the rate of dropping; gives what to multiply by, and what to add."""

ALPHA = 1.7580993408473766
"""Minus the limit of SELU towards minus infinity: what alpha dropout puts in the place of a dropped element."""


def _scaled(kept: Tensor, p: float) -> tuple[Tensor, None]:
    """Return the factor of a dropout."""
    return kept / (1.0 - p), None


def _self_normalizing(kept: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return factor and shift of an alpha dropout, after which mean and variance are as before."""
    a = 1.0 / math.sqrt((ALPHA * ALPHA * p + 1.0) * (1.0 - p))
    return kept * a, (kept - 1.0) * (ALPHA * a) + ALPHA * a * p


def _elements(x: Tensor) -> Shape:
    return x.shape


def _channels(unbatched: int) -> Callable[[Tensor], Shape]:
    """Return what gives the shape of one decision per channel; of ``unbatched`` dimensions, there is no batch."""

    def channels(x: Tensor) -> Shape:
        leading = 1 if x.ndim == unbatched else 2
        return *x.shape[:leading], *(1 for _ in x.shape[leading:])

    return channels


def _dropout(
    shape: Callable[[Tensor], Shape], factors: Factors = _scaled, *, trains: bool = True
) -> Callable[..., Tensor]:
    """Return a dropout with the arguments of torch's; ``trains`` is the default of ``training``."""

    def dropout(
        noise: Noise,
        input: Tensor,  # noqa: A002 - torch's
        p: float = 0.5,
        training: bool = trains,
        inplace: bool = False,  # noqa: FBT002 - torch's
    ) -> Tensor:
        if not training or p == 0.0:
            return input
        kept = noise.keep(shape(input), 1.0 - p).to(input.device, input.dtype)
        factor, shift = factors(kept, p) if p < 1.0 else (kept, None)
        dropped = input.mul_(factor) if inplace else input * factor
        return dropped if shift is None else dropped.add_(shift)

    return dropout


_of_elements = _dropout(_elements)


def _dropout_at_train(noise: Noise, input: Tensor, p: float, train: bool) -> Tensor:  # noqa: A002 - torch's
    return _of_elements(noise, input, p, train)


def _attention(noise: Noise, *args: Any, **kwargs: Any) -> Tensor:
    """Return attention whose weights are dropped as any other tensor."""
    return attention(*args, **kwargs, drop=lambda weights, p: _of_elements(noise, weights, p))


def _filling(values: Callable[..., Tensor], default: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that fills a tensor with ``values(noise, shape, dtype, *args)``."""

    def fill(noise: Noise, self: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        if generator is not None:
            return default(self, *args, generator=generator, **kwargs)
        return self.copy_(values(noise, self.shape, self.dtype, *args, **kwargs))

    return fill


def _bernoulli(noise: Noise, shape: Shape, dtype: torch.dtype, p: float | Tensor = 0.5) -> Tensor:
    return noise.keep(shape, p).to(dtype)


def _uniform(noise: Noise, shape: Shape, dtype: torch.dtype, start: float = 0.0, to: float = 1.0) -> Tensor:
    return noise.uniform(shape, dtype) * (to - start) + start


def _normal(noise: Noise, shape: Shape, dtype: torch.dtype, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return noise.normal(shape, dtype) * std + mean


def _exponential(noise: Noise, shape: Shape, dtype: torch.dtype, lambd: float = 1.0) -> Tensor:
    return -torch.log1p(-noise.uniform(shape, dtype)) / lambd


def _drawn_bernoulli(
    noise: Noise,
    input: Tensor,  # noqa: A002 - torch's
    p: float | Tensor | None = None,
    *,
    generator: Any = None,
) -> Tensor:
    if generator is not None:
        rates = input if p is None else torch.as_tensor(p).expand(input.shape)
        return torch.bernoulli(rates, generator=generator).to(input.dtype)
    return noise.keep(input.shape, input if p is None else p).to(input.device, input.dtype)


def _sized(draw: Callable[..., Tensor], default: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that draws numbers of a given size; what it is, torch finds out."""

    def sized(noise: Noise, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
        if generator is not None:
            return default(*args, generator=generator, **kwargs)
        wanted = torch.empty(*args, **kwargs)
        return draw(noise, wanted.shape, wanted.dtype).to(wanted.device)

    return sized


def _spread(default: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function whose results can be drawn into, whatever lanes the noise has."""

    def spread(noise: Noise, *args: Any, **kwargs: Any) -> Tensor:
        return noise.spread(default(*args, **kwargs))

    return spread


def _refused(name: str) -> Callable[..., Tensor]:
    """Return what stands for a function that no mode can reach in a compiled step: it would go unseen there."""

    def refuse(*_: Any, **__: Any) -> Tensor:
        msg = (
            f"a module calls torch.{name}_like, which draws from torch's stream in a compiled step: "
            f"write torch.{name}(x.shape, dtype=x.dtype, device=x.device), or pass functional(..., noise=False)"
        )
        raise ValueError(msg)

    return refuse


DRAWS: dict[Any, Callable[..., Tensor]] = {
    F.dropout: _of_elements,
    torch.dropout: _dropout_at_train,
    F.dropout1d: _dropout(_channels(2)),
    F.dropout2d: _dropout(_channels(0)),
    F.dropout3d: _dropout(_channels(4)),
    F.alpha_dropout: _dropout(_elements, _self_normalizing, trains=False),
    F.feature_alpha_dropout: _dropout(_channels(0), _self_normalizing, trains=False),
    F.scaled_dot_product_attention: _attention,
    torch.Tensor.bernoulli_: _filling(_bernoulli, torch.Tensor.bernoulli_),
    torch.Tensor.uniform_: _filling(_uniform, torch.Tensor.uniform_),
    torch.Tensor.normal_: _filling(_normal, torch.Tensor.normal_),
    torch.Tensor.exponential_: _filling(_exponential, torch.Tensor.exponential_),
    torch.empty: _spread(torch.empty),
    torch.empty_like: _spread(torch.empty_like),
    torch.Tensor.new_empty: _spread(torch.Tensor.new_empty),
    torch.bernoulli: _drawn_bernoulli,
    torch.Tensor.bernoulli: _drawn_bernoulli,
    torch.rand: _sized(_uniform, torch.rand),
    torch.randn: _sized(_normal, torch.randn),
    torch.rand_like: _refused("rand"),
    torch.randn_like: _refused("randn"),
}
"""Which function draws how; each takes the noise first, then the arguments of torch's."""
