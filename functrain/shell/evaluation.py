"""Looking at a model in the middle of training: in eval mode, with the right average, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import nn

from functrain._fold import Pipeline
from functrain._wrapper import innermost
from functrain.hooks.average import Average
from functrain.shell.driver import Driver


def first_metric(summary: Mapping[str, Any]) -> Any:
    """Return the total loss of a summary, else its first number."""
    if not summary:
        msg = "the validation summary is empty, but a scheduler waits for a number of it"
        raise KeyError(msg)
    return summary["total_loss"] if "total_loss" in summary else next(iter(summary.values()))


def summary_of(found: Any) -> dict[str, Any]:
    """Return what a validation gave as a dict; a number is the total loss."""
    if isinstance(found, Mapping):
        return dict(cast("Mapping[str, Any]", found))
    if isinstance(found, str) or not hasattr(found, "__float__") or getattr(found, "shape", ()) != ():
        msg = f"validate must return a number or a mapping of numbers, got {type(found).__name__}"
        raise TypeError(msg)
    return {"total_loss": found}


def evaluating(modules: Iterable[nn.Module]) -> ExitStack:
    """Return a context in which modules are in eval mode and nothing is recorded for gradients."""
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    for module in (part for each in modules for part in each.modules()):
        stack.callback(setattr, module, "training", module.training)
        module.training = False
    return stack


def chosen_averages(pipeline: Pipeline, wanted: str | None) -> list[str]:
    """Return the averages to validate with: each model's own, or the one asked for."""
    found = [(each.name, innermost(each)) for each in pipeline]
    keys = {name: each.model_key for name, each in found if isinstance(each, Average)}
    if wanted is not None:
        if wanted not in keys:
            msg = f"no average named {wanted!r}; this pipeline keeps {sorted(keys)}"
            raise KeyError(msg)
        return [name for name, key in keys.items() if name == wanted or key != keys[wanted]]
    return _one_each(keys)


def _one_each(keys: Mapping[str, str]) -> list[str]:
    """Return the averages, refusing two of one model."""
    owner: dict[str, str] = {}
    for name, key in keys.items():
        if key in owner:
            msg = f"{owner[key]!r} and {name!r} both average model {key!r}; say which: fit(..., validate_with={name!r})"
            raise ValueError(msg)
        owner[key] = name
    return list(keys)


def updated_averages(driver: Driver, names: Iterable[str]) -> dict[str, str]:
    """Return those averages that have been updated, by the model that they are of."""
    hooks = {each.name: innermost(each) for each in driver.pipeline}
    slots = driver.state.hooks
    return {hook.model_key: n for n in names if isinstance(hook := hooks[n], Average) and slots[n]["n_averaged"] > 0}
