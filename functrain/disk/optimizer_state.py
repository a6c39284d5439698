"""The stored state of an optimizer or scheduler: whether the one there is can take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

LIKE_PARAMETER = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
"""What optimizers keep in the shape of the parameter; torch loads any shape, and fails at the next step."""


def check_optimizer(stored: Any, optimizer: Optimizer, path: str) -> None:
    """Refuse a state that the next step could not use.

    Raises:
        ValueError: other groups, or a buffer of another shape.
    """
    groups, state = _parts(stored, path)
    sizes = [len(each["params"]) for each in groups]
    if sizes != [len(each["params"]) for each in optimizer.param_groups]:
        raise ValueError(f"{path}: stored groups of {sizes} parameters, and this optimizer has others")
    named = [place for each in groups for place in each["params"]]
    leaves = [leaf for group in optimizer.param_groups for leaf in group["params"]]
    for place, leaf in zip(named, leaves, strict=True):
        for name, value in dict(state.get(place, {})).items():
            if name in LIKE_PARAMETER and not (value is None or _alike(value, leaf)):
                raise ValueError(f'{path}["state"][{place}]["{name}"] is not of the shape {tuple(leaf.shape)}')


def _parts(stored: Any, path: str) -> tuple[list[Mapping[str, Any]], Mapping[Any, Any]]:
    """Return groups and state."""
    if not isinstance(stored, Mapping) or not {"param_groups", "state"} <= set(cast("Mapping[str, Any]", stored)):
        raise ValueError(f"{path} is no state of an optimizer")
    held = cast("Mapping[str, Any]", stored)
    if not isinstance(held["param_groups"], list) or not isinstance(held["state"], Mapping):
        raise ValueError(f"{path} is no state of an optimizer")  # noqa: TRY004 - the content of a checkpoint
    return cast("Any", held["param_groups"]), cast("Any", held["state"])


def _alike(value: Any, leaf: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == leaf.shape


def check_scheduler(stored: Any, scheduler: Any, path: str) -> None:
    """Refuse a state that would hide a method: ``load_state_dict`` of torch writes whatever attributes it is given.

    Raises:
        ValueError: the name.
    """
    if not isinstance(stored, Mapping):
        raise ValueError(f"{path} is no state of a scheduler")  # noqa: TRY004 - the content of a checkpoint
    for name in cast("Mapping[str, Any]", stored):
        if name == "optimizer" or callable(getattr(cast("Any", type(scheduler)), str(name), None)):
            raise ValueError(f"{path} would write over {name!r} of {type(scheduler).__name__}")
