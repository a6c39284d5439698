"""The same gradients for an optimizer of torch and for a pure one, and where each has got to after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from functrain._tree import FrozenMap

SHAPES: dict[str, tuple[int, ...]] = {"scalar": (), "short": (3,), "odd": (37,), "matrix": (5, 8), "empty": (0, 2)}
Tensors = FrozenMap[Any]


def drawn(seed: int, dtype: torch.dtype, scale: float = 1.0) -> Tensors:
    """Return tensors of many shapes: kernels round whole vectors and the rest of a tensor by different code."""
    generator = torch.Generator().manual_seed(seed)
    found = {name: torch.randn(shape, generator=generator, dtype=dtype) * scale for name, shape in SHAPES.items()}
    return FrozenMap({"main": found})


def gradients(steps: int, dtype: torch.dtype, seed: int = 0) -> list[Tensors]:
    """Return gradients of magnitudes between a hundredth and ten, one of them all zero."""
    found = [drawn(seed + 1 + step, dtype, 10.0 ** (step % 4 - 2)) for step in range(steps)]
    found[steps // 2] = FrozenMap({"main": {name: torch.zeros_like(leaf) for name, leaf in found[0]["main"].items()}})
    return found


def torch_path(
    build: Callable[[Any], torch.optim.Optimizer], start: Tensors, grads: list[Tensors]
) -> Iterator[Tensors]:
    """Yield the parameters after each step of an optimizer of torch."""
    held = {name: torch.nn.Parameter(leaf.clone()) for name, leaf in start["main"].items()}
    optimizer = build(held.values())
    for each in grads:
        for name, leaf in held.items():
            leaf.grad = each["main"][name].clone()
        optimizer.step()
        yield FrozenMap({"main": {name: leaf.detach().clone() for name, leaf in held.items()}})


def torch_step(
    build: Callable[[Any], torch.optim.Optimizer], start: Tensors, grad: Tensors, kept: dict[str, Tensors], count: int
) -> dict[str, Tensors]:
    """Return parameters and buffers after one step of an optimizer of torch from a given state."""
    held = {name: torch.nn.Parameter(leaf.clone()) for name, leaf in start["main"].items()}
    optimizer = build(held.values())
    for name, leaf in held.items():
        leaf.grad = grad["main"][name].clone()
        buffers = {buffer: tree["main"][name].clone() for buffer, tree in kept.items()}
        optimizer.state[leaf] = {"step": torch.tensor(float(count)), **buffers}
    optimizer.step()
    after = {"params": {name: leaf.detach() for name, leaf in held.items()}}
    after |= {buffer: {name: optimizer.state[leaf][buffer] for name, leaf in held.items()} for buffer in kept}
    return {what: FrozenMap({"main": tensors}) for what, tensors in after.items()}


def pure_path(optimizer: Any, start: Tensors, grads: list[Tensors], **numbers: Tensor) -> Iterator[Tensors]:
    """Yield the parameters after each step of a pure optimizer, whose state may be given other numbers first."""
    params, state = start, optimizer.init(start) | numbers
    for each in grads:
        params, state = optimizer.step(each, state, params)
        yield params


def furthest(a: Tensors, b: Tensors) -> float:
    """Return the largest difference of two sets of parameters, relative where they are larger than 1."""
    pairs = [(left, b["main"][name]) for name, left in a["main"].items() if left.numel()]
    return max(float(((left - right).abs() / right.abs().clamp(min=1.0)).max()) for left, right in pairs)


def ulps(a: Tensor, b: Tensor, before: Tensor) -> float:
    """Return the largest difference of two results in units in the last place of the larger of result and start.

    Where a weight and its step nearly cancel, units of the small result would measure the cancellation.
    """
    size = torch.maximum(b.abs(), before.abs()).nan_to_num().clamp(min=torch.finfo(b.dtype).tiny)
    unit = torch.nextafter(size, torch.full_like(size, torch.inf)) - size
    apart = torch.where(torch.eq(a, b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs() / unit).nan_to_num(nan=torch.inf)
    return float(apart.max()) if apart.numel() else 0.0
