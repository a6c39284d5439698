"""L9: slot and configuration are data, which survives being saved."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as torch_pytree

from functrain import Hook, TrainState
from functrain._tree import leaves, paths, rebuilt, structure
from functrain.testing.breach import Breach, require_equal, require_same
from functrain.testing.forms import in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene


def check_round_trip(scene: Scene) -> None:
    """Check the configuration of every member, and its slot after a call."""
    state = in_form(scene.run().state, scene.form)
    for each in scene.members():
        _check_configuration(each)
        _check_slot(state, each.name)


def _check_configuration(hook: Hook) -> None:
    """Check that a copy, a pickled one and one built from the fields equal the hook; local functions have no name."""
    ways: dict[str, Callable[[Hook], Hook]] = {"copy": copy.copy, "deepcopy": copy.deepcopy, "its fields": built_again}
    if all(map(_has_a_name, functions_of(hook))):
        ways["pickle"] = _pickled
    for name, way in ways.items():
        found = _attempt(way, hook, f"the configuration does not survive {name}", "hook")
        require_equal(hook, found, f"the configuration is another one after {name}", "hook")


def _attempt(way: Callable[[Any], Any], value: Any, what: str, path: str) -> Any:
    try:
        return way(value)
    except Exception as error:
        raise Breach(f"{what}: {type(error).__name__}: {error}", path) from error


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


def built_again(hook: Hook) -> Hook:
    """Return a hook built from the fields of another one: nested models as data, functions and hooks as they are."""
    dumped = hook.model_dump(by_alias=True, warnings=False)
    held = {name: value for name, value in hook if any(True for _ in functions_of(value)) or isinstance(value, Hook)}
    fields: dict[str, Any] = {**dumped, **held}
    return type(hook)(**fields)


def functions_of(value: Any) -> Iterator[FunctionType]:
    """Yield the functions in a hook's fields: its code, which pickle finds again by name only."""
    match value:
        case FunctionType():
            yield value
        case partial():
            yield from functions_of(cast("partial[Any]", value).func)
        case Hook():
            for _, each in value:
                yield from functions_of(each)
        case _:
            return


def _has_a_name(function: FunctionType) -> bool:
    return "<" not in function.__qualname__


def _check_slot(state: TrainState, name: str) -> None:
    """Check that a slot holds tensors and numbers only, and that it comes back from trees, bytes and pickles."""
    slot, root = state.hooks[name], f'state.hooks["{name}"]'
    for path, leaf in paths(slot, root).items():
        if not isinstance(leaf, Tensor | bool | int | float):
            raise Breach("a slot holds tensors and numbers only", path, "a tensor or a number", leaf)
    ways: dict[str, Callable[[Any], Any]] = {
        "optree": lambda tree: rebuilt(tree, leaves(tree)),
        "torch's pytree": _through_torch,
        "bytes": lambda tree: rebuilt(tree, [_through_bytes(leaf) for leaf in leaves(tree)]),
        "deepcopy": copy.deepcopy,
        "pickle": _pickled,
    }
    for way, function in ways.items():
        found = _attempt(function, slot, f"the slot does not survive {way}", root)
        require_equal(structure(slot), structure(found), f"the slot has another structure after {way}", root)
        require_same(slot, found, f"the slot is another one after {way}", root)


def _through_torch(tree: Any) -> Any:
    found, spec = torch_pytree.tree_flatten(tree)
    require_equal(len(leaves(tree)), len(found), "torch's pytree and optree see other leaves")
    return torch_pytree.tree_unflatten(found, spec)


def _through_bytes(leaf: Any) -> Any:
    """Return a leaf made of nothing but its bytes, its dtype and its shape."""
    if not isinstance(leaf, Tensor):
        return type(leaf)(repr(leaf) != "False") if isinstance(leaf, bool) else type(leaf)(repr(leaf))
    plain = leaf.detach().contiguous().reshape(-1)
    if not plain.numel():
        return torch.zeros_like(leaf)
    numbers = cast("list[int]", plain.view(torch.uint8).tolist())
    return torch.frombuffer(bytearray(numbers), dtype=leaf.dtype).reshape(leaf.shape).clone()


ROUND_TRIP = Law("L9 round trip", "slot and configuration survive save and load bitwise", check_round_trip, cost=2)
