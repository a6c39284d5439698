"""The ranks that train one model together, and what they tell one another."""

from __future__ import annotations

import atexit
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from functrain._state import TrainState


class Ranks:
    """A process group; every method that exchanges something must be called by all its ranks.

    Attributes:
        rank: of this process.
        world: how many there are.
        group: the process group.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        """Exchange over ``group``, by tensors on ``device``."""
        end_after_workers()
        self.group, self._device = group, device
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    def gathered(self, values: Tensor) -> Tensor:
        """Return the values of all ranks, one row a rank, where they were."""
        own = values.to(self._device)
        rows = own.new_empty((self.world, *own.shape))
        with self.told():
            dist.all_gather(list(rows.unbind()), own.contiguous(), group=self.group)
        return rows.to(values.device)

    def any_of(self, flags: Tensor) -> Tensor:
        """Return for each flag whether some rank has it set."""
        found = flags.to(self._device, torch.int32)
        with self.told():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return found.bool()

    def summed(self, values: Tensor) -> Tensor:
        """Return the sums over all ranks."""
        found = values.to(self._device, copy=True)
        with self.told():
            dist.all_reduce(found, dist.ReduceOp.SUM, group=self.group)
        return found

    def objects(self, own: Any) -> list[Any]:
        """Return what every rank has given, by rank."""
        found: list[Any] = [None] * self.world
        with self.told():
            dist.all_gather_object(found, own, group=self.group)
        return found

    @contextmanager
    def told(self) -> Generator[None]:
        """Say in the error what it means when an exchange fails."""
        try:
            yield
        except Exception as error:
            self.tell(error)
            raise

    def tell(self, error: BaseException) -> None:
        """Add to an error of the network what has happened; to others nothing, and nothing twice."""
        told = (
            f"functrain: rank {self.rank} of {self.world} lost touch with the others: one of them has died, "
            "hangs, or has run another number of batches; what it says itself comes first"
        )
        if _is_lost(error) and told not in getattr(error, "__notes__", ()):
            error.add_note(told)

    def with_whole_window(self, state: TrainState) -> TrainState:
        """Return the state at a boundary with the weights of all ranks in its total: one small all-reduce."""
        window = state.window
        if not (window.weighted and window.entered):
            return state
        is_number = not isinstance(window.total, Tensor)
        total = self.summed(torch.as_tensor(window.total, dtype=torch.float64))
        return state.replace(window=window.replace(total=total.item() if is_number else total))


@cache
def end_after_workers() -> None:
    """Give the threads of process groups a tenth of a second before the interpreter ends.

    A thread of gloo that lets go of its last work needs the interpreter for it, and aborts the whole process when that
    is ending (https://github.com/pytorch/pytorch/issues/190489). ``destroy_process_group`` waits for such threads only
    where nothing else holds the group, and a DistributedDataParallel does.
    """
    atexit.register(time.sleep, 0.1)


def _is_lost(error: BaseException) -> bool:
    """Tell whether an error comes from the network between ranks: torch raises most of them as plain RuntimeErrors."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in ("gloo", "NCCL", "ProcessGroup"))
