"""What a shell finds out about the ranks of a run, from the modules that it was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from functrain._fold import Pipeline
from functrain._foreach import local
from functrain._state import TrainState
from functrain.shell.agreement import Agreement
from functrain.shell.collectives import Ranks
from functrain.shell.names import is_shard
from functrain.shell.reduction import Reduction, Replicas, Shards


def ranks_of(modules: Mapping[str, nn.Module]) -> Ranks | None:
    """Return the ranks over which the modules given are spread; None where they are not.

    Raises:
        ValueError: modules over different process groups, whose verdicts could not be one.
    """
    if not dist.is_available() or not dist.is_initialized():
        return None
    found = {key: _groups(module) for key, module in modules.items()}
    groups = [group for held in found.values() for group in held]
    if not groups:
        return None
    if any(dist.get_process_group_ranks(each) != dist.get_process_group_ranks(groups[0]) for each in groups):
        msg = f"the models {sorted(found)} are spread over different ranks: a veto could not be one for all of them"
        raise ValueError(msg)
    device = next(local(leaf).device for module in modules.values() for leaf in module.parameters())
    return Ranks(groups[0], device)


def _groups(module: nn.Module) -> list[Any]:
    """Return the process groups of a module and its parts."""
    replicas = [part.process_group for part in _outermost(module, _is_replica)]
    return [*replicas, *(_group_of(part) for part in _outermost(module, is_shard))]


def _is_replica(module: nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel)


def _outermost(module: nn.Module, wanted: Any) -> Iterator[Any]:
    """Yield the outermost parts of a kind."""
    if wanted(module):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child, wanted)


def _group_of(module: nn.Module) -> dist.ProcessGroup | None:
    """Return the group of all ranks on whose mesh a sharded module lies."""
    meshes: Iterator[Any] = (getattr(leaf, "device_mesh", None) for leaf in module.parameters())
    mesh = next(each for each in meshes if each is not None)
    if mesh.ndim == 1:
        return mesh.get_group()
    whole = mesh.size() == dist.get_world_size()
    return dist.group.WORLD if whole else mesh._flatten().get_group()  # noqa: SLF001 - nothing else makes it one group


def _reductions(modules: Iterable[nn.Module]) -> Iterator[Reduction]:
    """Yield how each wrapped module reduces, each once."""
    seen: set[int] = set()
    for module in modules:
        for part in (*_outermost(module, _is_replica), *_outermost(module, is_shard)):
            if id(part) not in seen:
                seen.add(id(part))
                yield Replicas(part) if _is_replica(part) else Shards(part, is_shard)


class Distributed:
    """What a shell of several ranks does besides: when gradients are reduced, and how verdicts become one."""

    def __init__(self, pipeline: Pipeline, ranks: Ranks, modules: Mapping[str, nn.Module]) -> None:
        """Sort out, once, what will be asked at every micro-batch."""
        self.ranks = ranks
        self.agreement = Agreement(pipeline, ranks)
        self._reductions = list(_reductions(modules.values()))

    def open(self, state: TrainState) -> None:
        """Before the forward: only the micro-batch that closes a window reduces."""
        boundary = bool(state.window.boundary)
        for each in self._reductions:
            each.expect() if boundary else each.defer()

    def close(self, *, differentiated: bool) -> None:
        """After the backward, or instead of it."""
        for each in self._reductions:
            each.close(differentiated=differentiated)

    def reduce(self) -> None:
        """Reduce what was kept to this rank."""
        with self.ranks.told():
            for each in self._reductions:
                each.reduce()

    def owes(self, state: TrainState) -> bool:
        """Tell whether a window closes on gradients that nothing has reduced."""
        return bool(state.window.boundary) and bool(state.window.entered)

    def hides_gradients(self) -> bool:
        """Tell whether a module keeps gradients of the open window where no one else can reach them."""
        return any(each.hides_gradients() for each in self._reductions)

    def forget(self) -> None:
        """Let a discarded window leave nothing behind."""
        for each in self._reductions:
            each.forget()
