"""The shadow: averaged tensors beside the ones they follow, in place where donated, else new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from functrain import _foreach
from functrain._packing import is_packed, packed
from functrain._pairs import Mover, Pairs
from functrain._select import Flag, Number, either, select
from functrain._tree import FrozenMap
from functrain.hooks.visits import Visits

LOW_PRECISION = (torch.bfloat16, torch.float16)
Seen: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""What an average sees of a weight, given the weight and its shadow, both on one device and in one dtype."""
Moves: TypeAlias = tuple[tuple[bool, Mover], ...]
"""What moves a shadow, and whether that can be averaged or is always copied."""


def shadow_of(
    tensors: FrozenMap[Tensor], kept: torch.dtype | None = None, device: str | None = None
) -> FrozenMap[Tensor]:
    """Return copies that share no storage: fp32 for bf16 and fp16, in which an average would stall.

    >>> shadow_of(FrozenMap({"w": torch.ones(1, dtype=torch.bfloat16)}))["w"].dtype
    torch.float32
    """
    return FrozenMap({name: _copy(leaf, kept, device) for name, leaf in tensors.items()})


def _copy(leaf: Tensor, kept: torch.dtype | None, device: str | None) -> Tensor:
    """Return a detached copy in the dtype of a shadow; in pinned memory if a GPU is to write to it from afar."""
    copy = leaf.detach().to(leaf.device if device is None else device, _dtype(leaf, kept), copy=True)
    return copy.pin_memory() if (leaf.device.type, copy.device.type) == ("cuda", "cpu") else copy


def _dtype(leaf: Tensor, kept: torch.dtype | None) -> torch.dtype:
    """Return what the shadow of a leaf is kept in."""
    if not _averages(leaf):
        return leaf.dtype
    if kept is not None:
        return torch.promote_types(leaf.dtype, kept)
    return torch.float32 if leaf.dtype in LOW_PRECISION else leaf.dtype


def _averages(leaf: Tensor) -> bool:
    """Tell whether a leaf can be averaged: integers and bools are copied."""
    return leaf.is_floating_point() or leaf.is_complex()


def as_they_are(weight: Tensor, shadow: Tensor) -> Tensor:  # noqa: ARG001 - one of two ways to see
    """See the weights themselves."""
    return weight


def where_finite(weight: Tensor, shadow: Tensor) -> Tensor:
    """See the shadow where a weight is not finite: it then stays where it is, without a look at the device.

    >>> where_finite(torch.tensor([1.0, float("nan")]), torch.zeros(2))
    tensor([1., 0.])
    """
    return torch.where(weight.isfinite(), weight, shadow)


def paired(shadow: FrozenMap[Tensor], source: FrozenMap[Tensor], seen: Seen) -> tuple[FrozenMap[Tensor], Moves]:
    """Return a donated shadow, and how it moves towards its latest source: sorted out once per source.

    What is small moves side by side with the others: a shadow that is not packed is so from its first update on. A
    forward may replace buffers, and groups of old ones must go.
    """
    if not shadow:
        return shadow, ()
    latest = shadow.derived("pairs", _nothing_paired)
    if latest.get("source") is source:
        return shadow, latest["pairs"]
    alone = seen is not as_they_are or any(leaf.device != source[name].device for name, leaf in shadow.items())
    if not alone and not is_packed(shadow):
        shadow = FrozenMap(packed(shadow))
    pairs = _sorted_out(shadow, source, seen, alone)
    shadow.derived("pairs", _nothing_paired).update(source=source, pairs=pairs)
    return shadow, pairs


def move_(moves: Moves, weight: Any, copies: Any) -> None:
    """Move a donated shadow in place: copy, or lerp by ``weight``; what cannot be averaged is copied."""
    for averages, mover in moves:
        if copies or not averages or weight == 1.0:  # lerp(nan, x, 1) would be nan
            mover.copy_()
        else:
            mover.lerp_(weight)


def _nothing_paired() -> dict[str, Any]:
    return {}


def _sorted_out(shadow: FrozenMap[Tensor], source: FrozenMap[Tensor], seen: Seen, alone: bool) -> Moves:
    """Sort out what is averaged and what is copied; in groups at once, unless each has to be looked at or sent for."""
    found: list[tuple[bool, Mover]] = []
    for averages in (False, True):
        names = [name for name, leaf in shadow.items() if _averages(leaf) is averages]
        sides = [shadow[name] for name in names], [source[name] for name in names]
        if names:
            found.append((averages, Visits(*sides, seen) if alone and averages else Pairs(*sides).alone()))
    return tuple(found)


def followed(
    shadow: FrozenMap[Tensor], source: FrozenMap[Tensor], weight: Number, copies: Flag, seen: Seen = as_they_are
) -> FrozenMap[Tensor]:
    """Return a new shadow, copied or moved by ``weight``; the old one stays."""
    whole: Flag = either(copies, weight == 1.0)  # pyright: ignore[reportArgumentType] - lerp(nan, x, 1) would be nan
    moved = {name: _moved(leaf, source[name], weight, whole, seen) for name, leaf in shadow.items()}
    return FrozenMap(moved)


def _moved(leaf: Tensor, source: Tensor, weight: Number, copies: Flag, seen: Seen) -> Tensor:
    """Return one leaf of a new shadow; always a tensor of its own. A differentiated run flows through it."""
    copy = source.to(leaf.device, leaf.dtype, copy=True)
    if not _averages(leaf):
        return copy
    end = seen(copy, leaf)
    return select(copies, lambda: end, lambda: _foreach.lerped(leaf, end, weight))


def led_(weights: FrozenMap[Tensor], shadow: FrozenMap[Tensor]) -> None:
    """Write a shadow into the donated weights that it follows; groups are made once per set of weights."""
    latest = shadow.derived("led", dict[str, Any])
    if latest.get("weights") is not weights:
        pairs = Pairs([weights[name] for name in shadow], list(shadow.values()))
        latest.update(weights=weights, pairs=pairs)
    latest["pairs"].copy_()


def led(weights: FrozenMap[Tensor], shadow: FrozenMap[Tensor]) -> FrozenMap[Tensor]:
    """Return the weights with the values of a shadow, as tensors of their own."""
    new = {name: leaf.to(weights[name].device, weights[name].dtype, copy=True) for name, leaf in shadow.items()}
    return weights | new
