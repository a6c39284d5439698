"""How broken hooks are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import functrain
from functrain import FrozenMap, Hook, Stage, TrainState

STEP, BACKWARD, AFTER = Stage.DO_OPTIMIZER_STEP, Stage.DO_BACKWARD, Stage.AFTER_OPTIMIZER_STEP
Break = Callable[[TrainState, Stage, Any], Any]


class Broken(NamedTuple):
    """A hook, and the name of the law that it breaks."""

    law: str
    make: Callable[[], Any]


def slot(_: TrainState) -> Any:
    """Build a slot with a counter and a tensor."""
    return FrozenMap({"n": 0, "t": torch.zeros(2)})


def bad(update: Break, stages: Any = STEP, **claims: Any) -> Callable[[], Hook]:
    """Return what makes a hook of a function."""
    return lambda: functrain.hook(update, name="bad", stages=stages, **{"init": slot, **claims})


def with_slot(state: TrainState, **changes: Any) -> TrainState:
    """Return a state with something else in the slot of the hook."""
    return state.with_slot("bad", state.hooks["bad"] | changes)


def tensors_of(state: TrainState, field: str) -> list[torch.Tensor]:
    """Return the tensors of the first model."""
    return list(getattr(state, field)["main"].values())


def mapped(state: TrainState, field: str, function: Callable[[torch.Tensor], torch.Tensor]) -> TrainState:
    """Return a state with every tensor of a field mapped."""
    models = getattr(state, field).items()
    return state.replace(**{field: {model: {n: function(t) for n, t in held.items()} for model, held in models}})
