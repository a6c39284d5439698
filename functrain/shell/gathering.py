"""A sharded run as whole tensors on rank 0: one tensor at a time, so that no rank holds more than its part and one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from functrain._foreach import is_sharded, whole
from functrain.shell.averaging import Averages
from functrain.shell.dictionaries import dictionary
from functrain.shell.driver import Driver
from functrain.shell.names import named_tensors, saved_names, unwrapped
from functrain.shell.sharded import refuse_open_window
from functrain.shell.snapshot import collected


def gathered_state_dict(driver: Driver, averages: Averages) -> dict[str, Any]:
    """Return everything that a resume needs on rank 0, and nothing elsewhere; all ranks must ask.

    Raises:
        ValueError: a window is open on several ranks, whose gradients no rank holds whole.
    """
    refuse_open_window(driver)
    parts = dictionary(driver, collected(driver, averages))
    parts["state"] |= {"grads": {key: {} for key in parts["state"]["grads"]}} if driver.distributed else {}
    return gathered(parts, keep=driver.state.rank == 0) or {}


def gathered_average(driver: Driver, averages: Averages, name: str) -> dict[str, Tensor]:
    """Return an average on rank 0, and nothing elsewhere; all ranks must ask."""
    hook, slot = averages.ready(name)
    source = unwrapped(driver.applier.models.modules[hook.model_key])
    state = averages.raw(driver.applier.refreshed(driver.state))
    raw = {**named_tensors(source), **state.params[hook.model_key], **state.buffers[hook.model_key]}
    values = {**raw, **slot["shadow"], **slot["buffers"]}
    names = saved_names(source)
    first = {each: values[each].to(raw[each].dtype) for each in dict.fromkeys(names.values())}
    found: dict[str, Tensor] = gathered(first, keep=driver.state.rank == 0) or {}
    return {each: found[held] for each, held in names.items() if held in found}


def gathered(tree: Any, *, keep: bool) -> Any:
    """Return nested mappings and lists with whole copies on the CPU, or None where nothing is kept.

    >>> gathered({"a": [torch.ones(1), 2]}, keep=True)
    {'a': [tensor([1.]), 2]}
    """
    if isinstance(tree, Tensor):
        return _gathered_tensor(tree, keep=keep)
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, Any]", tree).items()
        found = {key: gathered(value, keep=keep) for key, value in items}
        return found if keep else None
    if isinstance(tree, list | tuple):
        parts = [gathered(value, keep=keep) for value in cast("list[Any]", tree)]
        return type(cast("list[Any]", tree))(parts) if keep else None
    return tree if keep else None


def _gathered_tensor(tensor: Tensor, *, keep: bool) -> Tensor | None:
    """Return a whole copy of one tensor; what a rank has gathered for others is gone at once."""
    found = whole(tensor.detach())
    return torch.empty_like(found, device="cpu").copy_(found) if keep else None


def first_shard(driver: Driver) -> str | None:
    """Return the path of the first parameter that is sharded, if there is one."""
    params = ((key, name, leaf) for key, held in driver.state.params.items() for name, leaf in held.items())
    return next((f'state.params["{key}"]["{name}"]' for key, name, leaf in params if is_sharded(leaf)), None)


def refuse_shards(driver: Driver, what: str, instead: str) -> None:
    """Refuse what needs whole tensors, where parameters are sharded.

    Raises:
        ValueError: with what to write instead.
    """
    if (path := first_shard(driver)) is not None:
        msg = f"{what} needs whole tensors, and {path} is sharded over ranks; write {instead}"
        raise ValueError(msg)
