"""A copy of everything a run consists of, and the way back to it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
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

    >>> from functrain import Hook, Shell
    >>> model = torch.nn.Linear(1, 1)
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), Hook())
    >>> start = shell.snapshot()
    >>> with shell.batch():
    ...     shell.update(model(torch.ones(1, 1)).square().mean())
    >>> shell.restore(start)
    >>> shell.state.clock.step, torch.equal(model.weight, start.state.params["main"]["weight"])
    (0, True)
    """

    state: TrainState
    optimizers: dict[str, Any]
    schedulers: dict[str, Any]
    random: dict[str, Any]

    def _repr_html_(self) -> str:
        """Show the snapshot in a notebook as a tree that folds; reads no device."""
        from functrain.show.state import state

        return state({each.name: getattr(self, each.name) for each in fields(self)}, root="snapshot").html()


def copied(tree: Any) -> Any:
    """Return a tree with copies of its tensors."""
    return _tree.map_leaves(_copied_leaf, tree)


def _copied_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach().clone()
    return copy.copy(leaf) if hasattr(leaf, "__array__") else leaf  # an array of numpy in a batch is written into, too


def snapshot(driver: Driver, averages: Averages) -> Snapshot:
    """Copy everything; inside ``averaged()`` the raw weights."""
    return duplicate(collected(driver, averages))


def duplicate(taken: Snapshot) -> Snapshot:
    """Return a snapshot that shares nothing with another one."""
    return Snapshot(
        state=copied(taken.state),
        optimizers=copy.deepcopy(taken.optimizers),
        schedulers=copy.deepcopy(taken.schedulers),
        random=taken.random,
    )


def collected(driver: Driver, averages: Averages) -> Snapshot:
    """Return everything as it is at this moment, on the tensors of the run: true only until training goes on.

    Raises:
        ValueError: a sharded module keeps gradients of an open window to itself, where nobody can copy them.
    """
    if driver.distributed is not None and driver.distributed.hides_gradients():
        raise ValueError(HIDDEN)
    driver.state = driver.applier.read_gradients(driver.applier.refreshed(driver.state))
    return held(driver, averages.raw(driver.state))


def held(driver: Driver, state: TrainState) -> Snapshot:
    """Return a state with what the shell keeps beside it, all on the tensors of the run."""
    optimizers = driver.applier.optimizers
    return Snapshot(
        state=state,
        optimizers={key: each.state_dict() for key, each in optimizers.by_key.items()},
        schedulers={key: {} if each is None else each.state_dict() for key, each in optimizers.schedulers.items()},
        random=random_states(),
    )


HIDDEN = (
    "a window is open, and fully_shard keeps the gradients of its micro-batches to itself until they are reduced: no "
    "snapshot and no state dict can hold them; call it between windows, after a boundary or shell.flush()"
)


def random_states() -> dict[str, Any]:
    """Return the states of torch's random number generators."""
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore(driver: Driver, taken: Snapshot) -> None:
    """Write a snapshot back into the real objects; the snapshot itself stays untouched."""
    adopt(driver, duplicate(taken))


def adopt(driver: Driver, taken: Snapshot) -> None:
    """Write a snapshot back that nobody else holds: its tensors become those of the run. What may fail comes first."""
    if driver.distributed is not None:
        driver.distributed.forget()
    state, applier, optimizers = taken.state, driver.applier, driver.applier.optimizers
    for key, held in taken.optimizers.items():
        optimizers.by_key[key].load_state_dict(held)
    for key, held in taken.schedulers.items():
        if optimizers.schedulers[key] is not None:
            optimizers.schedulers[key].load_state_dict(held)
    set_random_states(taken.random)
    refreshed = applier.refreshed(driver.state)
    driver.state = applier.write(refreshed.replace(params=state.params, buffers=state.buffers, grads=state.grads))
    driver.state = applier.read_gradients(state.replace(params=driver.state.params, buffers=driver.state.buffers))
    applier.show_scale(driver.state)


def set_random_states(states: dict[str, Any]) -> None:
    """Set torch's random number generators."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
