"""Small tensors side by side in memory, so that they can be moved as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

SMALL = 512
"""Elements below which a call costs a CPU more than its arithmetic."""
LONGEST = 1 << 15
"""Elements that are packed together at most."""
FEWEST = 8
"""Tensors from which on packing pays."""


def is_small(tensor: Tensor) -> bool:
    """Tell whether a tensor gains from being packed.

    >>> is_small(torch.zeros(3)), is_small(torch.zeros(1000))
    (True, False)
    """
    here = type(tensor) is Tensor and tensor.device.type == "cpu"
    return here and 0 < tensor.numel() <= SMALL and tensor.is_contiguous()


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of which the small ones lie side by side, each kind in storage of its own; values stay.

    >>> both = packed({str(place): torch.ones(2) for place in range(8)})
    >>> both["1"].data_ptr() - both["0"].data_ptr()
    8
    """
    kinds: dict[torch.dtype, dict[str, Tensor]] = {}
    for name, leaf in tensors.items():
        if is_small(leaf):
            kinds.setdefault(leaf.dtype, {})[name] = leaf
    return {**tensors, **{name: leaf for held in kinds.values() for name, leaf in _side_by_side(held).items()}}


def _side_by_side(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors of one dtype on one storage; a few are left as they are."""
    if len(tensors) < FEWEST:
        return dict(tensors)
    flat = torch.cat([leaf.reshape(-1) for leaf in tensors.values()])
    return dict(zip(tensors, places(flat, list(tensors.values())), strict=True))


def places(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a flat tensor, one after the other, in the shapes of the tensors given.

    >>> places(torch.arange(3.0), [torch.zeros(1), torch.zeros(2)])
    [tensor([0.]), tensor([1., 2.])]
    """
    ends = accumulate(tensor.numel() for tensor in tensors)
    return [flat[end - each.numel() : end].view(each.shape) for each, end in zip(tensors, ends, strict=True)]


def is_packed(tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether nothing would be gained by packing.

    >>> is_packed({"only": torch.zeros(3)})
    True
    """
    small = [(leaf, leaf) for leaf in tensors.values() if is_small(leaf)]
    return len(small) < FEWEST or any(len(run) > 1 for run in runs(small))


def runs(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield pairs whose first tensors follow one another in memory, not too many at a time.

    >>> flat = torch.arange(5.0)
    >>> [len(run) for run in runs([(flat[:2], flat), (flat[2:], flat), (torch.zeros(1), flat)])]
    [2, 1]
    """
    run: list[tuple[Tensor, Tensor]] = []
    length = 0
    for pair in pairs:
        length += pair[0].numel()
        if run and (length > LONGEST or not _follows(run[-1][0], pair[0])):
            yield run
            run, length = [], pair[0].numel()
        run.append(pair)
    if run:
        yield run


def _follows(first: Tensor, second: Tensor) -> bool:
    """Tell whether one tensor begins where the other ends, on one storage."""
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    return same and first.storage_offset() + first.numel() == second.storage_offset()


def as_one(tensors: Sequence[Tensor]) -> Tensor:
    """Return a flat view over tensors that follow one another in memory.

    >>> flat = torch.arange(4.0)
    >>> as_one([flat[:1], flat[1:3]])
    tensor([0., 1., 2.])
    """
    total = sum(tensor.numel() for tensor in tensors)
    return tensors[0].as_strided((total,), (1,), tensors[0].storage_offset())
