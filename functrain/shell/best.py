"""What ``BestAverage`` has kept, for use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from functrain._foreach import is_sharded, whole
from functrain._wrapper import innermost
from functrain.hooks.best import BestAverage
from functrain.shell.driver import Driver
from functrain.shell.names import is_shard, named_tensors, saved_names

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Best:
    """The weights of the best validation so far.

    Attributes:
        score: of that validation.
        step: how many steps had been executed.
        epoch: in which it was.
        averaged: whether an average was validated, or the raw weights before its first update.

    >>> from functrain import EMA, BestAverage, Shell
    >>> model, hooks = nn.Linear(1, 1), [EMA(), BestAverage(metric="accuracy", mode="max")]
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks)
    >>> shell.validated({"accuracy": 0.75})
    >>> best = shell.best()
    >>> best.score, best.averaged, sorted(best.state_dict())
    (0.75, False, ['bias', 'weight'])
    """

    score: float
    step: int
    epoch: int
    averaged: bool
    _tensors: Mapping[str, Tensor] = field(repr=False)
    _module: nn.Module = field(repr=False)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies under the plain names of the model's own state dict, tied ones under each, in its dtypes.

        Of a sharded model they are whole, and all ranks must ask for them.
        """
        like = named_tensors(self._module)
        return {
            name: whole(self._tensors[first]).to(like[first].dtype, copy=True)
            for name, first in saved_names(self._module).items()
            if first in self._tensors
        }

    def load_into(self, module: M) -> M:
        """Write the weights into a module, in place, and return it; of a sharded model all ranks must do so.

        Raises:
            ValueError: the module does not have these tensors: names and shapes.
        """
        for part in module.modules():
            if is_shard(part):
                part.reshard()  # pyright: ignore[reportCallIssue] - a forward may have left whole tensors in it
        found = named_tensors(module)
        _check_fits(module, found, self._tensors)
        with torch.no_grad():
            for name, value in self._tensors.items():
                found[name].copy_(value if is_sharded(found[name]) else whole(value))
        return module


def _check_fits(module: nn.Module, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse a module before anything is written."""
    odd = sorted(name for name, value in wanted.items() if name not in found or found[name].shape != value.shape)
    if odd:
        shapes = [tuple(found[name].shape) if name in found else None for name in odd]
        msg = (
            f"the best weights do not fit {type(module).__name__}: it has {shapes} for {odd}, which are "
            f"{[tuple(wanted[name].shape) for name in odd]}"
        )
        raise ValueError(msg)


def best_of(driver: Driver, name: str) -> Best:
    """Return what a BestAverage has kept.

    Raises:
        KeyError: no such hook; lists those there are.
        RuntimeError: nothing has been kept.
    """
    found: dict[str, Any] = {each.name: innermost(each) for each in driver.pipeline}
    hooks = {key: each for key, each in found.items() if isinstance(each, BestAverage)}
    if name not in hooks:
        msg = f"no BestAverage named {name!r}; this pipeline has {sorted(hooks)}"
        raise KeyError(msg)
    hook, slot = hooks[name], driver.state.slot(name)
    if not slot["kept"]:
        msg = (
            f"{name!r} has kept nothing: no validation has had a score of {hook.metric!r} that is a number; "
            "give validate= to fit, or call shell.validated(summary)"
        )
        raise RuntimeError(msg)
    return Best(
        score=slot["score"],
        step=slot["step"],
        epoch=slot["epoch"],
        averaged=slot["averaged"],
        _tensors={**slot["weights"], **slot["buffers"]},
        _module=driver.applier.models.modules[hook.model_key],
    )
