"""The pure optimizer that does what an optimizer of torch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import optim

from functrain import pure
from functrain.pure.protocol import Optimizer
from functrain.pure.torch_state import layout_of
from functrain.shell.optimizers import Optimizers


def counterpart(optimizers: Optimizers) -> dict[str, tuple[Optimizer, Callable[[str, str], bool]]]:
    """Return what ``pure.train_step`` takes for the optimizers of a shell: each with the parameters that it holds.

    Raises:
        ValueError: an optimizer other than SGD, Adam and AdamW, or groups that differ in their numbers.
    """
    table = optimizers.owners.table
    return {key: (pure_of(each, key), _holder(table[key])) for key, each in optimizers.by_key.items()}


def pure_of(optimizer: optim.Optimizer, key: str = "main") -> Optimizer:
    """Return the pure optimizer of the same numbers.

    Raises:
        ValueError: an optimizer other than SGD, Adam and AdamW, or groups that differ in their numbers.

    >>> sgd = pure_of(torch.optim.SGD([torch.ones(1)], lr=0.1, momentum=0.9))
    >>> sgd.hyper
    ('lr', 'momentum', 'dampening', 'weight_decay')
    """
    layout_of(optimizer, key)
    group = optimizer.param_groups[0]
    if isinstance(optimizer, optim.SGD):
        return _with(pure.sgd, group, "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
    build = pure.adamw if isinstance(optimizer, optim.AdamW) else pure.adam
    return _with(build, group, "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")


def _with(build: Callable[..., Optimizer], group: dict[str, Any], *names: str) -> Optimizer:
    return build(**{name: group[name] for name in names})


def _holder(places: tuple[tuple[str, str], ...]) -> Callable[[str, str], bool]:
    """Return a selector of exactly these parameters."""
    held = frozenset(places)
    return lambda model, name: (model, name) in held


def tolerance_of(optimizers: Optimizers) -> float:
    """Return how far shell and pure engine may be apart after one step: not at all with SGD, 2 ulp with the others.

    In float64 that is 1e-12, which leaves room for the order of the roundings.
    """
    leaves = [leaf for each in optimizers.by_key.values() for group in each.param_groups for leaf in group["params"]]
    if all(isinstance(each, optim.SGD) for each in optimizers.by_key.values()):
        return 0.0
    if all(leaf.dtype in (torch.float64, torch.complex128) for leaf in leaves):
        return 1e-12
    return 2 * torch.finfo(torch.float32).eps
