"""The real modules of a shell, and the views of their tensors that go into the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from functrain._foreach import is_sharded, locals_of
from functrain._frozen_map import FrozenMap, wrap
from functrain.shell.names import is_shard, named_buffers, named_parameters

T = TypeVar("T")
SavedBuffer: TypeAlias = tuple[dict[str, Any], str, Tensor, Tensor]
"""Where a buffer is held, its name there, the tensor itself, and a copy of it."""
Place: TypeAlias = tuple[int, str]
"""Which tensor of a module this is, by identity: models that share a part share its places."""


def keyed(given: Any, kind: type[T], what: str) -> dict[str, T]:
    """Return what was given by key: "main" for one, "0", "1", ... for a sequence, else the mapping's keys.

    Raises:
        TypeError: something that is not of the kind.
    """
    if isinstance(given, kind) and not isinstance(given, nn.ModuleDict):
        return {"main": given}
    found: dict[str, Any] = {str(key): value for key, value in _items(given, kind, what)}
    for key, value in found.items():
        if not isinstance(value, kind):
            msg = f"{what}[{key!r}] must be a {kind.__name__}, got {type(value).__name__}"
            raise TypeError(msg)
    return found


def _items(given: Any, kind: type[T], what: str) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping, or number the members of a sequence."""
    if isinstance(given, Mapping | nn.ModuleDict):
        return cast("Mapping[Any, Any]", given).items()
    if given is not None and not isinstance(given, Sequence):
        msg = f"{what} must be one {kind.__name__}, a sequence or a mapping of them, got {type(given).__name__}"
        raise TypeError(msg)
    return ((str(place), value) for place, value in enumerate(cast("Sequence[Any]", given or ())))


class Models:
    """Parameters, buffers and gradients of real modules, by model key and plain name.

    ``live`` holds the parameters themselves, ``params`` detached tensors on the same storage, made once;
    ``unreached`` lists those that have had no gradient so far.
    """

    def __init__(self, given: Any) -> None:
        """Name every tensor."""
        self.modules = keyed(given, nn.Module, "models")
        self.live: FrozenMap[Any] = FrozenMap({key: named_parameters(each) for key, each in self.modules.items()})
        self._holders = {key: named_buffers(each) for key, each in self.modules.items()}
        self._buffer_places = [(k, name, *held) for k, each in self._holders.items() for name, held in each.items()]
        self._shards: list[Any] = [part for each in self.modules.values() for part in each.modules() if is_shard(part)]
        self._all = [leaf for held in self.live.values() for leaf in held.values()]
        self._has_shards = any(map(is_sharded, self._all))
        self.places = list(self._unique())
        self.unreached = self.places
        self.params, self._addresses = self._detached(), self._now()
        self.buffers: FrozenMap[Any] = self._held()

    def _unique(self) -> Iterable[tuple[str, str, nn.Parameter]]:
        """Yield each parameter once, under the first of its names."""
        seen: set[int] = set()
        for key, held in self.live.items():
            for name, leaf in held.items():
                if id(leaf) not in seen:
                    seen.add(id(leaf))
                    yield key, name, leaf

    def _detached(self) -> FrozenMap[Any]:
        return FrozenMap({key: {name: leaf.detach() for name, leaf in held.items()} for key, held in self.live.items()})

    def _now(self) -> list[int]:
        """Return where the parameters lie: a cast or a move of the module gives them other storage."""
        return [*map(torch.Tensor.data_ptr, locals_of(self._all) if self._has_shards else self._all)]

    def _held(self) -> FrozenMap[Any]:
        """Return the buffers as the modules hold them now."""
        return FrozenMap(
            {key: {name: at[own] for name, (at, own) in held.items()} for key, held in self._holders.items()}
        )

    def forget_gathered(self) -> None:
        """Let sharded modules gather anew: whole parameters that a forward has left there are of old values."""
        for part in self._shards:
            part.reshard()

    def refresh_params(self) -> None:
        """Follow casts and moves of the module; without any, the mapping stays the same object."""
        if (addresses := self._now()) != self._addresses:
            self.params, self._addresses = self._detached(), addresses

    def refresh_buffers(self) -> None:
        """Follow replaced buffers; without any, the mapping stays the same object."""
        for key, name, at, own in self._buffer_places:
            if at[own] is not self.buffers[key][name]:
                self.buffers = self._held()
                return

    def param_places(self, key: str) -> dict[str, Place]:
        """Return the place of each parameter of a model, by name."""
        return {name: (id(leaf), "") for name, leaf in self.live[key].items()}

    def buffer_places(self, key: str) -> dict[str, Place]:
        """Return the place of each buffer of a model, by name, in the order of :meth:`saved_buffers`."""
        return {name: (id(at), own) for name, (at, own) in self._holders[key].items()}

    def gradients(self) -> FrozenMap[Any]:
        """Return the gradients there are, each tensor once."""
        found: dict[str, dict[str, Tensor]] = {key: {} for key in self.modules}
        for key, name, leaf in self.places:
            grad = leaf.grad
            if grad is not None:
                found[key][name] = grad
        if self.unreached:
            self.unreached = [place for place in self.unreached if place[2].grad is None]
        return wrap({key: wrap(held) for key, held in found.items()})

    def clear_gradients(self) -> None:
        """Drop every gradient."""
        for leaf in self._all:
            leaf.grad = None

    def saved_buffers(self, model: str | None = None) -> list[SavedBuffer]:
        """Return the buffers, of one model or of all, and copies of them, for :meth:`restore_buffers`."""
        places = (place for place in self._buffer_places if model in (None, place[0]))
        return [(at, own, at[own], at[own].clone()) for _, _, at, own in places]

    @staticmethod
    def restore_buffers(saved: Iterable[SavedBuffer]) -> None:
        """Put buffers back, values and tensors."""
        with torch.no_grad():
            for at, own, tensor, copy in saved:
                tensor.copy_(copy)
                at[own] = tensor

    def write(self, key: str, name: str, value: Tensor) -> None:
        """Write a parameter in place."""
        with torch.no_grad():
            self.params[key][name].copy_(value)
