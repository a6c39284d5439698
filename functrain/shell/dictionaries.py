"""A shell as plain dicts of tensors and numbers, and the way back: torch's ``Stateful`` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from functrain import _tree
from functrain._merging import Leaf, converted, item, merged, moved, of_keys
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.shell.averaging import Averages
from functrain.shell.configuration import check_configurations, check_kinds, configuration, kinds
from functrain.shell.driver import Driver
from functrain.shell.snapshot import Snapshot, restore, snapshot

VERSION = 1
KEPT = ("params", "buffers", "grads", "window", "clock", "hooks", "scaler", "stepped", "loss", "raw_loss", "rng")
"""The fields that a resume needs; the others belong to one batch."""
FREE = ("loss", "raw_loss")
"""Fields of any dtype: the user's loss has that of the model."""
PARTS = ("version", "state", "optimizers", "schedulers", "kinds", "random", "pipeline")


def state_dict(driver: Driver, averages: Averages) -> dict[str, Any]:
    """Return copies of everything that a resume needs."""
    return dictionary(driver, snapshot(driver, averages))


def dictionary(driver: Driver, taken: Snapshot) -> dict[str, Any]:
    """Return a snapshot as plain dicts, with what it is compared by when it is loaded."""
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
    parts = {name: of_keys(stored[name], getattr(current, name), name) for name in ("optimizers", "schedulers")}
    try:
        restore(driver, replace(current, state=state, random=stored["random"], **parts))
        driver.read_hyper()
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
        item(stored, name, name)
    if stored["version"] != VERSION:
        msg = f"the checkpoint has version {stored['version']!r}, this functrain reads version {VERSION}"
        raise ValueError(msg)


def merged_state(state: TrainState, stored: Mapping[str, Any], leaf: Leaf = converted) -> TrainState:
    """Return the state with what was stored, on the devices that the state is on; what fits already is not copied.

    Raises:
        KeyError: a leaf that was not stored, or one that nobody knows.
        ValueError: a leaf of another kind or shape.
    """
    found = {name: item(stored, name, f"state.{name}") for name in KEPT}
    whole = {
        name: merged(getattr(state, name), held, f"state.{name}", leaf)
        for name, held in found.items()
        if name != "grads"
    }
    free = {name: moved(found[name], getattr(state, name).device) for name in FREE}
    return state.replace(**{**whole, **free}, grads=_gradients(state, found["grads"], leaf))


def _gradients(state: TrainState, stored: Mapping[str, Any], leaf: Leaf) -> FrozenMap[Any]:
    """Return stored gradients: which there are depends on the window, not on the structure."""
    held = of_keys(stored, state.params, "state.grads")
    return FrozenMap({key: _gradients_of(key, state.params[key], grads, leaf) for key, grads in held.items()})


def _gradients_of(key: str, params: FrozenMap[Tensor], stored: Mapping[str, Any], leaf: Leaf) -> FrozenMap[Any]:
    """Return the stored gradients of one model."""
    path = f'state.grads["{key}"]'
    if unknown := sorted(stored.keys() - params.keys()):
        msg = f"{path}: gradients of parameters that nobody knows: {unknown}"
        raise KeyError(msg)
    return FrozenMap({name: merged(params[name], grad, f'{path}["{name}"]', leaf) for name, grad in stored.items()})
