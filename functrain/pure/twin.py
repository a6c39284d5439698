"""A module's twin: the same tensors in other objects, so that a forward may leave its traces there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MethodType
from typing import Any, cast

from torch import nn

from functrain.shell.names import bare, unwrapped


def twins(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return modules that share parameters and buffers with the given ones, and nothing that could be written into.

    ``functional_call`` puts other tensors into a module while it runs, and a forward may set attributes: both happen
    to the twin. Wrappers (compiled, parallel, checkpointing) are taken out, shared parts stay shared.

    >>> module = nn.Linear(1, 1)
    >>> twin = twins({"main": module})["main"]
    >>> twin is module, twin.weight is module.weight
    (False, True)
    """
    made: dict[int, nn.Module] = {}
    return {key: bare(_twin(unwrapped(module), made)) for key, module in modules.items()}


def _twin(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """Return the twin of one module, made once."""
    if id(module) not in made:
        made[id(module)] = twin = object.__new__(type(module))
        vars(twin).update({name: _reborn(held, made) for name, held in vars(module).items()})
        if "_compiled_call_impl" in vars(twin):  # of module.compile(): it calls the module that was compiled
            vars(twin)["_compiled_call_impl"] = None
    return made[id(module)]


def _reborn(held: Any, made: dict[int, nn.Module]) -> Any:
    """Return an attribute for a twin: modules as their twins, also in containers and as owners of bound methods."""
    if isinstance(held, nn.Module):
        return _twin(held, made)
    if isinstance(held, MethodType) and isinstance(held.__self__, nn.Module):
        return MethodType(held.__func__, _twin(held.__self__, made))
    if type(held) in (dict, OrderedDict):
        kind = cast("type[dict[Any, Any]]", type(held))
        return kind((key, _reborn(value, made)) for key, value in cast("dict[Any, Any]", held).items())
    if type(held) in (list, tuple):
        kind = cast("type[list[Any]]", type(held))
        return kind(_reborn(value, made) for value in cast("list[Any]", held))
    return held
