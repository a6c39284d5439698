"""The processes that ``torchrun`` has started, or the only one."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Place(NamedTuple):
    """Which of how many processes this one is.

    >>> Place().is_first
    True
    """

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process talks and writes."""
        return self.rank == 0

    def wrapped(self, model: nn.Module) -> nn.Module:
        """Return what is trained: the model itself, or a replica of it that reduces its gradients."""
        return model if self.world == 1 else DistributedDataParallel(model)


@contextmanager
def joined(device: str) -> Generator[Place]:
    """Join the processes that ``torchrun`` has started, if it has, and leave them in the end.

    >>> with joined("cpu") as place: place.world
    1
    """
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield Place()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Place(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
