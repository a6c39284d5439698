"""A copy of everything a run consists of, and the way back to it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from functrain import _tree
from functrain._state import TrainState
from functrain.shell.averaging import Averages
from functrain.shell.driver import Driver


@dataclass(frozen=True)
class Snapshot:
    """State, optimizers, schedulers and random number generators at one moment; it stays true.

    Attributes:
        state: with copies of all tensors.
        optimizers: state dict per key.
        schedulers: state dict per key, empty where there is none.
        random: states of torch's generators, by device.
    """

    state: TrainState
    optimizers: dict[str, Any]
    schedulers: dict[str, Any]
    random: dict[str, Any]


def copied(tree: Any) -> Any:
    """Return a tree with copies of its tensors."""
    return _tree.map_leaves(_copied_leaf, tree)


def _copied_leaf(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def snapshot(driver: Driver, averages: Averages) -> Snapshot:
    """Copy everything; inside ``averaged()`` the raw weights."""
    optimizers = driver.applier.optimizers
    driver.state = driver.applier.read_gradients(driver.applier.refreshed(driver.state))
    return Snapshot(
        state=copied(averages.raw(driver.state)),
        optimizers={key: copy.deepcopy(each.state_dict()) for key, each in optimizers.by_key.items()},
        schedulers={
            key: {} if each is None else copy.deepcopy(each.state_dict()) for key, each in optimizers.schedulers.items()
        },
        random=random_states(),
    )


def random_states() -> dict[str, Any]:
    """Return the states of torch's random number generators."""
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore(driver: Driver, taken: Snapshot) -> None:
    """Write a snapshot back into the real objects; the snapshot itself stays untouched."""
    state, applier = copied(taken.state), driver.applier
    refreshed = applier.refreshed(driver.state)
    driver.state = applier.write(refreshed.replace(params=state.params, buffers=state.buffers, grads=state.grads))
    optimizers = applier.optimizers
    for key, held in taken.optimizers.items():
        optimizers.by_key[key].load_state_dict(copy.deepcopy(held))
    for key, held in taken.schedulers.items():
        if optimizers.schedulers[key] is not None:
            optimizers.schedulers[key].load_state_dict(copy.deepcopy(held))
    _restore_random(taken.random)
    driver.state = applier.read_gradients(state.replace(params=driver.state.params, buffers=driver.state.buffers))
    applier.show_scale(driver.state)


def _restore_random(states: dict[str, Any]) -> None:
    """Set torch's random number generators."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
