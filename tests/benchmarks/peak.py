"""The most memory that tensors take during an update."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses import FakeTensor
from torch.profiler import ProfilerActivity, profile


def peak(update: Callable[[], None], others: int) -> int:
    """Return the bytes that are allocated at most during a warm update, less those that were there before.

    Two updates are recorded: the profiler sees a tensor freed only if it has seen it made, and the second update frees
    nothing older than the first. What the curve ends at is then read off the living tensors.

    Args:
        update: a warm update.
        others: bytes of the tensors that do not belong to it, from :func:`alive`.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        update()
        with torch.profiler.record_function("second update"):
            update()
    events = sorted(recorded.profiler.kineto_results.events(), key=lambda event: event.start_ns())  # type: ignore[union-attr]
    begin = next(event.start_ns() for event in events if event.name() == "second update")
    memory = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    curve = list(accumulate((size for _, size in memory), initial=0))
    first = sum(time < begin for time, _ in memory)
    return max(curve[first:]) - curve[-1] + alive() - others


def alive() -> int:
    """Return the bytes of all living tensors on the CPU, each storage once."""
    gc.collect()
    held = {}
    for each in filter(_is_real, gc.get_objects()):
        storage = each.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def _is_real(found: object) -> bool:
    """Tell a tensor with memory of its own from sparse ones, and from what compilers and transforms leave behind."""
    if not issubclass(type(found), Tensor):
        return False
    stand_in = isinstance(found, FakeTensor) or is_functorch_wrapped_tensor(cast("Tensor", found))
    dense = cast("Tensor", found).layout is torch.strided
    return dense and not stand_in and cast("Tensor", found).device.type == "cpu"
