"""Gradients that are spread over ranks in shards: whole norms and verdicts from what each rank holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from functrain import _foreach
from functrain._foreach import is_sharded, local


def groups_of(tensor: Any) -> tuple[Any, ...]:
    """Return the process groups over which the parts of a tensor lie; ranks that hold copies do not count twice.

    >>> groups_of(torch.zeros(1))
    ()
    """
    if not is_sharded(tensor):
        return ()
    cut = [dim for dim, placement in enumerate(tensor.placements) if placement.is_shard()]
    return tuple(tensor.device_mesh.get_group(dim) for dim in cut)


def total_norm(pairs: Iterable[tuple[Any, Tensor]], order: float) -> Tensor:
    """Return one norm over tensors of which ranks hold parts, in double: an all-reduce for each way of cutting.

    Args:
        pairs: each tensor beside a mask: 0 if it must not count, else 1.
        order: of the norm.
    """
    layouts: dict[tuple[Any, ...], list[Tensor]] = {}
    for counts, tensor in pairs:
        layouts.setdefault(groups_of(tensor), []).append(_power(counts, local(tensor), order))
    largest = order == float("inf")
    totals = [_over_ranks(torch.stack(parts), groups, largest=largest) for groups, parts in layouts.items()]
    together = torch.stack([each.to(totals[0].device) for each in totals])
    return together.amax() if largest else together.sum() ** (1.0 / order)


def _power(counts: Any, part: Tensor, order: float) -> Tensor:
    """Return what a part adds to the sum: its norm to the power of the order, or its largest magnitude."""
    if not part.numel():
        return torch.zeros((), dtype=torch.float64, device=part.device)
    norm = _foreach.norm(part, order, dtype=_wide(part))
    return torch.where(torch.as_tensor(counts, device=part.device), norm if order == float("inf") else norm**order, 0.0)


def _wide(part: Tensor) -> torch.dtype:
    return torch.complex128 if part.is_complex() else torch.float64


def _over_ranks(parts: Tensor, groups: Sequence[Any], *, largest: bool) -> Tensor:
    """Return the sum, or the largest, of parts here and on the ranks of some groups."""
    found = parts.amax() if largest else parts.sum()
    for group in groups:
        dist.all_reduce(found, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=group)
    return found


def any_over_ranks(flags: dict[str, Any], tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Return flags of which each is set if it is on a rank that holds a part of one of the tensors."""
    groups = list(dict.fromkeys(group for tensor in tensors for group in groups_of(tensor)))
    if not groups or not flags:
        return flags
    device = next(_devices(flags.values()), torch.device("cpu"))
    found = torch.stack([torch.as_tensor(flag, device=device) for flag in flags.values()]).to(torch.int32)
    for group in groups:
        dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return dict(zip(flags, found.bool().unbind(), strict=True))


def _devices(flags: Iterable[Any]) -> Iterator[torch.device]:
    return (flag.device for flag in flags if isinstance(flag, Tensor))
