"""Checkpoints of several ranks through ``torch.distributed.checkpoint``: each writes its part, any number reads it."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from functrain._foreach import is_sharded
from functrain.shell.averaging import Averages
from functrain.shell.dictionaries import load_state_dict, state_dict
from functrain.shell.driver import Driver

Path = str | PathLike[str]
RANDOM = "random_of"
"""Where each rank keeps its random number generators."""


def save_sharded(driver: Driver, averages: Averages, path: Path) -> None:
    """Write a folder, together with all ranks.

    Raises:
        ValueError: a window is open, whose gradients no rank holds whole.
    """
    from torch.distributed.checkpoint.state_dict_saver import save  # pyright: ignore[reportUnknownVariableType]

    refuse_open_window(driver)
    stored = _without_window(state_dict(driver, averages))
    stored[RANDOM] = {str(driver.state.rank): stored.pop("random")}
    stored["optimizers"] = {key: _by_text(held) for key, held in stored["optimizers"].items()}
    with _among(driver) as where:
        save(stored, checkpoint_id=path, **where)


def load_sharded(driver: Driver, averages: Averages, path: Path) -> None:
    """Read a folder, together with all ranks, which may be more or fewer than those that wrote it.

    Raises:
        ValueError: a window is open; or what ``load_state_dict`` refuses.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load  # pyright: ignore[reportUnknownVariableType]

    refuse_open_window(driver)
    current = _without_window(state_dict(driver, averages))
    random, rank = current.pop("random"), str(driver.state.rank)
    kept = FileSystemReader(path).read_metadata()
    if any(place[:2] == (RANDOM, rank) for place in _places(kept)):
        current[RANDOM] = {rank: random}
    for key, optimizer in driver.applier.optimizers.by_key.items():
        current["optimizers"][key] = _by_text(current["optimizers"][key]) | {"state": _blank(key, optimizer, kept)}
    with _among(driver) as where:
        load(current, checkpoint_id=path, **where)
    current["random"] = current.pop(RANDOM, {}).get(rank, random)
    current["optimizers"] = {key: _by_number(held) for key, held in current["optimizers"].items()}
    load_state_dict(driver, current)


@contextmanager
def _among(driver: Driver) -> Generator[dict[str, Any]]:
    """Say which ranks take part; that it is one alone is no reason for a warning."""
    if driver.distributed is not None:
        yield {"process_group": driver.distributed.ranks.group}
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield {"no_dist": True}


def refuse_open_window(driver: Driver) -> None:
    """Refuse to look at gradients before they are reduced.

    Raises:
        ValueError: a window is open.
    """
    if driver.state.window.entered:
        msg = (
            "a window is open: on several ranks its gradients are in parts that have not been reduced; save and load "
            "between windows, after a boundary or shell.flush()"
        )
        raise ValueError(msg)


def refuse_carried_window(driver: Driver) -> None:
    """Refuse to save, on several ranks, at the end of epochs that may leave a window open.

    Raises:
        ValueError: with what to write instead.
    """
    if driver.distributed is not None and getattr(driver.accumulate, "partial", "") == "carry":
        msg = (
            'Accumulate(partial="carry") leaves a window open at the end of an epoch, and fit(checkpoint=...) cannot '
            "save it on several ranks: each holds the gradients of its own micro-batches; "
            'write partial="flush" or "drop"'
        )
        raise ValueError(msg)


def _without_window(held: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict without the gradients of a window that is closed."""
    return held | {"state": held["state"] | {"grads": {key: {} for key in held["state"]["grads"]}}}


def _by_text(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dict of an optimizer by names that a path can hold: its own are numbers."""
    return {**optimizer, "state": {str(place): held for place, held in optimizer["state"].items()}}


def _by_number(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    return {**optimizer, "state": {int(place): held for place, held in optimizer["state"].items()}}


def _places(kept: Any) -> dict[tuple[Any, ...], str]:
    """Return the paths of what was written, and the names under which it was."""
    found = cast("dict[str, tuple[Any, ...]]", kept.planner_data)
    return {tuple(path): name for name, path in found.items()}


def _blank(key: str, optimizer: Optimizer, kept: Any) -> dict[str, dict[str, Any]]:
    """Return the state of an optimizer as it was written, to be read into: a new one has none yet."""
    params = [leaf for group in optimizer.param_groups for leaf in group["params"]]
    found: dict[str, dict[str, Any]] = {}
    for path, name in _places(kept).items():
        if path[:3] == ("optimizers", key, "state"):
            place, field = path[3:5]
            found.setdefault(place, {})[field] = _like(params[int(place)], kept.state_dict_metadata[name])
    return found


def _like(param: Tensor, kept: Any) -> Any:
    """Return an empty tensor for what was written, sharded as its parameter is if it has that shape; 0 for a number."""
    if not hasattr(kept, "size"):
        return 0
    dtype = kept.properties.dtype
    if is_sharded(param) and kept.size == param.shape:
        return torch.zeros_like(param.detach(), dtype=dtype)
    return torch.zeros(kept.size, dtype=dtype, device=param.device if kept.size else "cpu")
