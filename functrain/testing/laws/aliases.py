"""Where tensors share memory that must not: what is donated from one place would be overwritten in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from functrain import FrozenMap, Hook, TrainState
from functrain._tree import paths
from functrain.testing.breach import Breach

OWNED = ("params", "buffers", "grads", "hooks", "opt")
"""The fields whose leaves may be overwritten where a state is donated."""


def storages(tree: Any, root: str = "state") -> dict[str, int]:
    """Return by path where each tensor lives; tensors without elements live nowhere."""
    found = paths(tree, root)
    return {path: leaf.untyped_storage().data_ptr() for path, leaf in found.items() if _lives(leaf)}


def _lives(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.numel() > 0


def owned(state: TrainState) -> dict[str, int]:
    """Return where the leaves live that may be overwritten."""
    return {path: place for name in OWNED for path, place in storages(getattr(state, name), f"state.{name}").items()}


def check_aliases(before: TrainState, after: TrainState) -> None:
    """Check that a leaf is no tensor of another place, of the input or of the output."""
    sources = _by_storage(storages(before))
    seen: dict[int, str] = {}
    for path, place in owned(after).items():
        if place in sources and path not in sources[place]:
            raise Breach(
                f"aliases {sources[place][0]} of the input; store a clone", path, "memory of its own", "shared"
            )
        if place in seen and not (place in sources and seen[place] in sources[place]):
            raise Breach(f"is the very tensor of {seen[place]}; store a clone", path, "memory of its own", "shared")
        seen[place] = path


def _by_storage(places: Mapping[str, int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for path, place in places.items():
        found.setdefault(place, []).append(path)
    return found


def check_two_calls(first: TrainState, second: TrainState) -> None:
    """Check that two calls, on inputs that share nothing, give results that share nothing."""
    handed = _by_storage(owned(first))
    for path, place in owned(second).items():
        if place in handed:
            raise Breach("two calls return one and the same tensor; make a new one", path, "a new tensor", "shared")


def check_slots(hook: Hook, state: TrainState) -> None:
    """Check that ``init`` shares nothing with the state, with another call of itself, or within a slot."""
    root = f'state.hooks["{hook.name}"]'
    # Both are held until both were looked at: what was let go, the next one may find free.
    slots = [FrozenMap({"slot": hook.init(state)})["slot"] for _ in range(2)]
    first, second = (storages(slot, root) for slot in slots)
    theirs = set(owned(state).values())
    for path, place in first.items():
        if place in theirs:
            raise Breach("init hands out a tensor of the state; clone it", path, "memory of its own", "shared")
        if place in second.values():
            raise Breach("init hands out one tensor twice: a shared default", path, "a new tensor", "shared")
    for held in _by_storage(first).values():
        if len(held) > 1:
            raise Breach(f"init hands out one tensor for two places: {held[0]}", held[1], "memory of its own", "shared")
