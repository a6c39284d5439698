"""A shell as plain dicts of tensors and numbers, and the way back: torch's ``Stateful`` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from functrain import _tree
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.shell.averaging import Averages
from functrain.shell.configuration import check_configurations, check_kinds, configuration, kinds
from functrain.shell.driver import Driver
from functrain.shell.snapshot import restore, snapshot

VERSION = 1
KEPT = ("params", "buffers", "grads", "window", "clock", "hooks", "scaler", "stepped", "loss", "raw_loss", "rng")
"""The fields that a resume needs; the others belong to one batch."""
FREE = ("loss", "raw_loss")
"""Fields of any dtype: the user's loss has that of the model."""
PARTS = ("version", "state", "optimizers", "schedulers", "kinds", "random", "pipeline")


def state_dict(driver: Driver, averages: Averages) -> dict[str, Any]:
    """Return copies of everything that a resume needs."""
    taken = snapshot(driver, averages)
    return {
        "version": VERSION,
        "state": {name: plain(getattr(taken.state, name)) for name in KEPT},
        "optimizers": taken.optimizers,
        "schedulers": taken.schedulers,
        "kinds": kinds(driver.applier.optimizers),
        "random": taken.random,
        "pipeline": {each.name: configuration(each) for each in driver.pipeline},
    }


def plain(value: Any) -> Any:
    """Return mappings and records as dicts.

    >>> plain(FrozenMap({"a": FrozenMap({"b": 1})}))
    {'a': {'b': 1}}
    """
    if isinstance(value, _tree.Record):
        value = vars(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    return value


def load_state_dict(driver: Driver, stored: Mapping[str, Any]) -> None:
    """Check everything, then take it over; what fails later is undone."""
    _check_parts(stored)
    check_configurations(driver.pipeline, stored["pipeline"])
    check_kinds(driver.applier.optimizers, stored["kinds"])
    current = snapshot(driver, Averages(driver))
    state = merged_state(current.state, stored["state"])
    state = state.replace(vetoes=driver.pristine, metrics=driver.unpublished)
    parts = {name: _of_keys(stored[name], getattr(current, name), name) for name in ("optimizers", "schedulers")}
    try:
        restore(driver, replace(current, state=state, random=stored["random"], **parts))
    except BaseException:
        restore(driver, current)
        raise


def _check_parts(stored: Mapping[str, Any]) -> None:
    """Refuse what is no state dict of this version.

    Raises:
        KeyError: a part that is missing.
        ValueError: another version.
    """
    for name in PARTS:
        _item(stored, name, name)
    if stored["version"] != VERSION:
        msg = f"the checkpoint has version {stored['version']!r}, this functrain reads version {VERSION}"
        raise ValueError(msg)


def _of_keys(stored: Any, current: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return stored parts for exactly the keys that there are."""
    if set(stored) != set(current):
        msg = f"{path}: stored keys {sorted(stored)}, expected {sorted(current)}"
        raise KeyError(msg)
    return dict(stored)


def merged_state(state: TrainState, stored: Mapping[str, Any]) -> TrainState:
    """Return the state with what was stored, on the devices that the state is on.

    Raises:
        KeyError: a leaf that was not stored, or one that nobody knows.
        ValueError: a leaf of another kind or shape.
    """
    found = {name: _item(stored, name, f"state.{name}") for name in KEPT}
    whole = {
        name: _merged(getattr(state, name), held, f"state.{name}") for name, held in found.items() if name != "grads"
    }
    free = {name: found[name].detach().to(getattr(state, name).device, copy=True) for name in FREE}
    return state.replace(**{**whole, **free}, grads=_gradients(state, found["grads"]))


def _gradients(state: TrainState, stored: Mapping[str, Any]) -> FrozenMap[Any]:
    """Return stored gradients: which there are depends on the window, not on the structure."""
    held = _of_keys(stored, state.params, "state.grads")
    return FrozenMap({key: _gradients_of(key, state.params[key], grads) for key, grads in held.items()})


def _gradients_of(key: str, params: FrozenMap[Tensor], stored: Mapping[str, Any]) -> FrozenMap[Any]:
    """Return the stored gradients of one model."""
    path = f'state.grads["{key}"]'
    if unknown := sorted(stored.keys() - params.keys()):
        msg = f"{path}: gradients of parameters that nobody knows: {unknown}"
        raise KeyError(msg)
    return FrozenMap({name: _merged(params[name], grad, f'{path}["{name}"]') for name, grad in stored.items()})


def _item(stored: Any, key: str, path: str) -> Any:
    """Return a part of what was stored."""
    if not isinstance(stored, Mapping) or key not in stored:
        msg = f"{path!r} is missing from the checkpoint"
        raise KeyError(msg)
    return cast("Mapping[str, Any]", stored)[key]


def _merged(current: Any, stored: Any, path: str) -> Any:
    """Return stored values in the structure of current ones."""
    if isinstance(current, _tree.Record):
        items = {k: (v, _item(stored, k, f"{path}.{k}")) for k, v in vars(current).items()}
        return current.replace(**{k: _merged(*pair, f"{path}.{k}") for k, pair in items.items()})
    if isinstance(current, Mapping):
        current = cast("Mapping[Any, Any]", current)
        if not isinstance(stored, Mapping):
            raise ValueError(_other_kind(current, stored, path))  # noqa: TRY004 - the content of a checkpoint
        held = _of_keys(stored, current, path)
        return FrozenMap({k: _merged(v, held[k], f'{path}["{k}"]') for k, v in current.items()})
    return _merged_leaf(current, stored, path)


def _merged_leaf(current: Any, stored: Any, path: str) -> Any:
    """Return a stored leaf: a tensor of the same shape, or a number, which may be stored as either kind."""
    if isinstance(current, Tensor):
        if isinstance(stored, int | float) and not current.ndim:
            return torch.as_tensor(stored, dtype=current.dtype, device=current.device)
        if not isinstance(stored, Tensor) or current.shape != stored.shape:
            raise ValueError(_other_kind(current, stored, path))
        return stored.detach().to(current.device, current.dtype, copy=True)
    if isinstance(stored, Tensor) and not stored.ndim:
        stored = stored.item()
    if isinstance(current, int | float) and not isinstance(stored, int | float):
        raise ValueError(_other_kind(current, stored, path))  # noqa: TRY004 - the same
    return stored


def _other_kind(current: Any, stored: Any, path: str) -> str:
    """Say what was stored and what was expected."""
    kinds_of = [f"a tensor {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in (stored, current)]
    return f"{path}: stored {kinds_of[0]}, expected {kinds_of[1]}"
