"""The state of ``torch.optim`` optimizers as that of the pure ones, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from functrain._tree import FrozenMap
from functrain.pure.arithmetic import real


class Layout(NamedTuple):
    """How one class of optimizer keeps its state.

    Attributes:
        numbers: from a group of torch's to the numbers of the pure state.
        group: from the pure numbers to the entries of a group.
        buffers: names of the tensors that each parameter has.
        counted: each parameter has a ``step`` of its own.
    """

    numbers: Callable[[Mapping[str, Any]], dict[str, Any]]
    group: Callable[[Mapping[str, Any]], dict[str, Any]]
    buffers: tuple[str, ...]
    counted: bool


def _sgd_numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    moving = ("momentum", "dampening") if group["momentum"] else ()
    return {name: group[name] for name in ("lr", *moving, "weight_decay")}


def _adam_numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {
        "lr": group["lr"],
        "beta1": beta1,
        "beta2": beta2,
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
    }


def _adam_group(numbers: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: numbers[name] for name in ("lr", "eps", "weight_decay") if name in numbers}
    return {**plain, "betas": (numbers["beta1"], numbers["beta2"])}


def layout_of(optimizer: Optimizer, key: str) -> Layout:
    """Return the layout of an optimizer.

    Raises:
        ValueError: a class that has no pure counterpart, or groups that differ in their numbers.
    """
    group = optimizer.param_groups[0]
    if isinstance(optimizer, SGD):
        layout = Layout(_sgd_numbers, dict, ("momentum_buffer",) if group["momentum"] else (), counted=False)
    elif isinstance(optimizer, Adam | AdamW):
        largest = ("max_exp_avg_sq",) if group["amsgrad"] else ()
        layout = Layout(_adam_numbers, _adam_group, ("exp_avg", "exp_avg_sq", *largest), counted=True)
    else:
        msg = f"optimizer {key!r} is {type(optimizer).__name__}; SGD, Adam and AdamW have pure counterparts"
        raise ValueError(msg)  # noqa: TRY004 - an optimizer it is, but not one of these
    if any(layout.numbers(other) != layout.numbers(group) for other in optimizer.param_groups):
        msg = f"the groups of optimizer {key!r} differ in their numbers; give each group an optimizer of its own"
        raise ValueError(msg)
    return layout


def pure_state(optimizer: Optimizer, key: str, places: Mapping[tuple[str, str], Tensor], steps: int) -> FrozenMap[Any]:
    """Return the state of a torch optimizer in the form of the pure one.

    Args:
        optimizer: SGD, Adam or AdamW.
        key: its key, for messages.
        places: the live parameters that it holds, by model and name.
        steps: how often it has stepped.
    """
    layout = layout_of(optimizer, key)
    numbers = {name: real(value) for name, value in layout.numbers(optimizer.param_groups[0]).items()}
    buffers = {name: _nested(optimizer, name, places) for name in layout.buffers}
    return FrozenMap({"step": torch.tensor(steps), **numbers, **buffers})


def _nested(optimizer: Optimizer, buffer: str, places: Mapping[tuple[str, str], Tensor]) -> FrozenMap[Any]:
    """Return one buffer of all parameters by model and name; zeros where there is none yet."""
    found: dict[str, dict[str, Tensor]] = {}
    for (model, name), leaf in places.items():
        kept = optimizer.state.get(leaf, {}).get(buffer)
        found.setdefault(model, {})[name] = torch.zeros_like(leaf) if kept is None else kept.detach().clone()
    return FrozenMap(found)


def write_torch_state(
    optimizer: Optimizer, key: str, places: Mapping[tuple[str, str], Tensor], state: FrozenMap[Any]
) -> None:
    """Write a pure state into a torch optimizer; before the first step there is nothing to write but numbers."""
    layout = layout_of(optimizer, key)
    numbers = {name: float(value) for name, value in state.items() if isinstance(value, Tensor) and name != "step"}
    for group in optimizer.param_groups:
        group.update(layout.group(numbers))
    if not int(state["step"]):
        return
    for (model, name), leaf in places.items():
        kept = {buffer: state[buffer][model][name].detach().clone() for buffer in layout.buffers}
        counted = {"step": state["step"].to("cpu", torch.float32)} if layout.counted else {}
        optimizer.state[leaf] = {**counted, **kept}
