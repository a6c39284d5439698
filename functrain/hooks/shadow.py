"""The shadow: averaged tensors beside the ones they follow, in place where donated, else new."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from functrain import _foreach
from functrain._pairs import Pairs
from functrain._select import Flag, Number, either, select
from functrain._tree import FrozenMap

LOW_PRECISION = (torch.bfloat16, torch.float16)


def shadow_of(tensors: FrozenMap[Tensor]) -> FrozenMap[Tensor]:
    """Return copies that share no storage: fp32 for bf16 and fp16, in which an average would stall.

    >>> shadow_of(FrozenMap({"w": torch.ones(1, dtype=torch.bfloat16)}))["w"].dtype
    torch.float32
    """
    return FrozenMap({name: _copy(leaf) for name, leaf in tensors.items()})


def _copy(leaf: Tensor) -> Tensor:
    """Return a detached copy in the dtype of a shadow."""
    own = leaf.detach()
    return own.to(torch.float32) if leaf.dtype in LOW_PRECISION else own.clone()


def _averages(leaf: Tensor) -> bool:
    """Tell whether a leaf can be averaged: integers and bools are copied."""
    return leaf.is_floating_point() or leaf.is_complex()


def follow_(shadow: FrozenMap[Tensor], source: FrozenMap[Tensor], weight: float, copies: bool) -> FrozenMap[Tensor]:
    """Move a donated shadow in place: copy, or lerp by ``weight``; groups are made once per source."""
    averaged, copied = _pairs(shadow, source)
    copied.copy_()
    if copies or weight == 1.0:  # lerp(nan, x, 1) would be nan
        averaged.copy_()
    else:
        averaged.lerp_(weight)
    return shadow


def _pairs(shadow: FrozenMap[Tensor], source: FrozenMap[Tensor]) -> Any:
    """Return the groups of a shadow and its latest source: a forward may replace buffers, and old ones must go."""
    latest = shadow.derived("pairs", dict[str, Any])
    if latest.get("source") is not source:
        latest.update(source=source, pairs=_paired(shadow, source))
    return latest["pairs"]


def _paired(shadow: FrozenMap[Tensor], source: FrozenMap[Tensor]) -> Any:
    """Group what is averaged and what is copied."""

    def pairs(names: list[str]) -> Pairs:
        return Pairs([shadow[name] for name in names], [source[name] for name in names])

    kinds = {name: _averages(leaf) for name, leaf in shadow.items()}
    return pairs([n for n, yes in kinds.items() if yes]), pairs([n for n, yes in kinds.items() if not yes])


def followed(shadow: FrozenMap[Tensor], source: FrozenMap[Tensor], weight: Number, copies: Flag) -> FrozenMap[Tensor]:
    """Return a new shadow, copied or moved by ``weight``; the old one stays."""
    whole: Flag = either(copies, weight == 1.0)  # pyright: ignore[reportArgumentType] - lerp(nan, x, 1) would be nan
    moved = {name: _moved(leaf, source[name], weight, whole) for name, leaf in shadow.items()}
    return FrozenMap(moved)


def _moved(leaf: Tensor, source: Tensor, weight: Number, copies: Flag) -> Tensor:
    """Return one leaf of a new shadow; always a tensor of its own. A differentiated run flows through it."""
    copy = source.to(leaf.device, leaf.dtype, copy=True)
    if not _averages(leaf):
        return copy
    return select(copies, lambda: copy, lambda: _foreach.lerped(leaf, source, weight))
