"""A shell as plain dicts of tensors and numbers, and the way back: torch's ``Stateful`` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from functrain import _tree
from functrain._combinators import CONTRACT
from functrain._fold import Pipeline
from functrain._hook import Hook
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.shell.averaging import Averages
from functrain.shell.driver import Driver
from functrain.shell.snapshot import restore, snapshot

VERSION = 1
KEPT = ("params", "buffers", "grads", "window", "clock", "hooks", "scaler", "rng")
"""The fields that a resume needs; the others belong to one batch."""
COUNTERS = ("num_updates",)
"""Configuration that only says where a count starts; the slot knows better."""


def state_dict(driver: Driver, averages: Averages) -> dict[str, Any]:
    """Return copies of everything that a resume needs."""
    taken = snapshot(driver, averages)
    return {
        "version": VERSION,
        "state": {name: plain(getattr(taken.state, name)) for name in KEPT},
        "optimizers": taken.optimizers,
        "schedulers": taken.schedulers,
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


def configuration(hook: Hook) -> dict[str, Any]:
    """Return the configuration of a hook as plain values; functions by their names.

    >>> from functrain import ClipNorm
    >>> configuration(ClipNorm(max_norm=1.0))
    {'max_norm': 1.0, 'norm_type': 2.0}
    """
    names = [name for name in type(hook).model_fields if name not in CONTRACT]
    return {name: _plain_setting(getattr(hook, name)) for name in names}


def _plain_setting(value: Any) -> Any:
    """Return one setting as something that can be stored and compared."""
    if isinstance(value, Hook):
        return configuration(value)
    if hasattr(value, "model_dump"):
        return {"rule": type(value).__name__, **value.model_dump()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", str(value))


def load_state_dict(driver: Driver, stored: Mapping[str, Any]) -> None:
    """Check everything, then take it over; what fails later is undone."""
    check_configurations(driver.pipeline, stored["pipeline"])
    current = snapshot(driver, Averages(driver))
    state = merged_state(current.state, stored["state"])
    parts = {name: stored[name] for name in ("optimizers", "schedulers", "random")}
    try:
        restore(driver, replace(current, state=state, **parts))
    except BaseException:
        restore(driver, current)
        raise


def check_configurations(pipeline: Pipeline, stored: Mapping[str, Any]) -> None:
    """Refuse hooks that are missing, left over, or configured otherwise than when they were saved.

    Raises:
        ValueError: the hook, the field, both values and the remedy.
    """
    names = {each.name for each in pipeline}
    if names != set(stored):
        msg = f"the checkpoint was written by hooks {sorted(stored)}; this pipeline has {sorted(names)}"
        raise ValueError(msg)
    for each in pipeline:
        for name, value in configuration(each).items():
            old = stored[each.name].get(name, value)
            if name not in COUNTERS and old != value:
                raise ValueError(_conflict(each, name, old, value))


def _conflict(hook: Hook, name: str, old: Any, new: Any) -> str:
    return (
        f"checkpoint conflict in {hook.name!r}: {name}={old!r} in the checkpoint and {name}={new!r} in the pipeline; "
        "construct the hook with the stored value, or change the slot after loading"
    )


def merged_state(state: TrainState, stored: Mapping[str, Any]) -> TrainState:
    """Return the state with what was stored, on the devices that the state is on.

    Raises:
        KeyError: a leaf that was not stored, or one that nobody knows.
        ValueError: a tensor of another shape.
    """
    whole = {name: _merged(getattr(state, name), stored[name], f"state.{name}") for name in KEPT if name != "grads"}
    return state.replace(**whole, grads=_gradients(state, stored["grads"]))


def _gradients(state: TrainState, stored: Mapping[str, Any]) -> FrozenMap[Any]:
    """Return stored gradients: which there are depends on the window, not on the structure."""
    return FrozenMap(
        {
            key: {
                name: _merged(state.params[key][name], grad, f'state.grads["{key}"]["{name}"]')
                for name, grad in held.items()
            }
            for key, held in stored.items()
        }
    )


def _merged(current: Any, stored: Any, path: str) -> Any:
    """Return stored values in the structure of current ones."""
    if isinstance(current, _tree.Record):
        return current.replace(**{k: _merged(v, stored[k], f"{path}.{k}") for k, v in vars(current).items()})
    if isinstance(current, Mapping):
        current = cast("Mapping[Any, Any]", current)
        if current.keys() != stored.keys():
            msg = f"{path}: stored keys {sorted(stored)}, expected {sorted(current)}"
            raise KeyError(msg)
        return FrozenMap({k: _merged(v, stored[k], f'{path}["{k}"]') for k, v in current.items()})
    if not isinstance(current, Tensor):
        return stored
    if current.shape != stored.shape:
        msg = f"{path}: stored shape {tuple(stored.shape)}, expected {tuple(current.shape)}"
        raise ValueError(msg)
    return stored.detach().to(current.device, current.dtype, copy=True)
