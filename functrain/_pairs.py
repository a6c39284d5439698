"""Tensors beside the tensors that they follow, sorted out once so that moving them is a few calls.

Three ways, all of which give bitwise the same. Most pairs go into one grouped call. Sources of another dtype or device
are staged: converted into a buffer of bounded size, part after part. On the CPU the grouped kernels take about half a
microsecond per tensor, whatever its size, so small targets that lie side by side in memory move as the one tensor that
they are, once their sources have been gathered.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from functrain._foreach import Kind, local
from functrain._packing import as_one, is_small, places, runs
from functrain._select import Number, beside

Pair: TypeAlias = tuple[Tensor, Tensor]
STAGED = 1 << 20
"""Elements of a staging buffer: what stays in the cache of a CPU, and is nothing beside a model."""


class Mover(Protocol):
    """Some pairs and a way to move them."""

    def copy_(self) -> None:
        """Make every target equal to its source."""
        ...

    def lerp_(self, weight: Number) -> None:
        """Move every target towards its source."""
        ...


class Pairs:
    """Tensors to be moved and the tensors they follow.

    >>> x = torch.zeros(1)
    >>> Pairs([x], [torch.ones(1)]).lerp_(0.25); x
    tensor([0.2500])
    """

    def __init__(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Sort the pairs by the way that suits them; their order within one way stays."""
        groups: dict[Kind, list[Pair]] = {}
        for target, source in zip(map(local, targets), map(local, sources), strict=True):
            groups.setdefault((target.device, target.dtype), []).append((target, source))
        self._movers = [mover for group in groups.values() for mover in _movers(group)]

    def alone(self) -> Mover:
        """Return the one way that suits all pairs if there is one, else these."""
        return self._movers[0] if len(self._movers) == 1 else self

    def copy_(self) -> None:
        """Make every target equal to its source."""
        for mover in self._movers:
            mover.copy_()

    def lerp_(self, weight: Number) -> None:
        """Move every target by the double ``weight``: bitwise what ``AveragedModel`` does."""
        for mover in self._movers:
            mover.lerp_(weight)


def _movers(group: list[Pair]) -> Iterator[Mover]:
    """Yield the ways in which pairs of one kind of target move."""
    alike = [(target, source) for target, source in group if _kind(target) == _kind(source)]
    if len(alike) < len(group):
        yield Staged([(target, source) for target, source in group if _kind(target) != _kind(source)])
    packable = [pair for pair in alike if all(map(is_small, pair))]
    packed = [run for run in runs(packable) if len(run) > 1]
    taken = {id(target) for run in packed for target, _ in run}
    for run in packed:
        yield Packed(run)
    if rest := [pair for pair in alike if id(pair[0]) not in taken]:
        yield Grouped(rest)


def _kind(tensor: Tensor) -> Kind:
    return tensor.device, tensor.dtype


class Grouped:
    """Pairs of one device and dtype: one grouped call."""

    def __init__(self, pairs: list[Pair]) -> None:
        """Keep both sides as lists."""
        self._targets, self._sources = [target for target, _ in pairs], [source for _, source in pairs]

    def copy_(self) -> None:
        """Make every target equal to its source."""
        torch._foreach_copy_(self._targets, self._sources)

    def lerp_(self, weight: Number) -> None:
        """Move every target towards its source."""
        torch._foreach_lerp_(self._targets, self._sources, beside(weight, self._targets[0]))


class Packed:
    """Small pairs on the CPU whose targets lie side by side: gathered, then moved as one tensor."""

    def __init__(self, pairs: list[Pair]) -> None:
        """Take a view over all targets, and a buffer for their sources."""
        self._flat = as_one([target for target, _ in pairs])
        self._sources = [source.view(-1) for _, source in pairs]
        self._gathered = torch.empty_like(self._flat)

    def copy_(self) -> None:
        """Make every target equal to its source."""
        torch.cat(self._sources, out=self._flat)

    def lerp_(self, weight: Number) -> None:
        """Move every target towards its source."""
        torch.cat(self._sources, out=self._gathered)
        self._flat.lerp_(self._gathered, beside(weight, self._flat))


class Staged:
    """Pairs whose sources have another dtype or device: converted part by part in a buffer of bounded size."""

    def __init__(self, pairs: list[Pair]) -> None:
        """Cut the pairs into parts that fit the buffer, which is as large as the largest part."""
        parts = _parts([piece for pair in pairs for piece in _cut(pair)])
        longest = max(sum(target.numel() for target, _ in part) for part in parts)
        buffer = torch.empty(longest, dtype=pairs[0][0].dtype, device=pairs[0][0].device)
        self._parts = [
            ([t for t, _ in part], [s for _, s in part], places(buffer, [t for t, _ in part])) for part in parts
        ]

    def copy_(self) -> None:
        """Make every target equal to its source."""
        for targets, sources, _ in self._parts:
            torch._foreach_copy_(targets, sources)

    def lerp_(self, weight: Number) -> None:
        """Move every target towards its source."""
        for targets, sources, staged in self._parts:
            torch._foreach_copy_(staged, sources)
            torch._foreach_lerp_(targets, staged, beside(weight, targets[0]))


def _cut(pair: Pair) -> Iterator[Pair]:
    """Yield a pair in pieces that fit the buffer; one that does not lie in a row stays whole."""
    target, source = pair
    if target.numel() <= STAGED or not (target.is_contiguous() and source.is_contiguous()):
        yield pair
        return
    for start in range(0, target.numel(), STAGED):
        yield target.view(-1)[start : start + STAGED], source.view(-1)[start : start + STAGED]


def _parts(pairs: list[Pair]) -> list[list[Pair]]:
    """Return the pairs in parts that fit the buffer."""
    parts: list[list[Pair]] = []
    room = 0
    for pair in pairs:
        if not parts or pair[0].numel() > room:
            parts.append([])
            room = STAGED
        parts[-1].append(pair)
        room -= pair[0].numel()
    return parts
