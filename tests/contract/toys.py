"""The smallest things that can be trained, and hooks that record or answer by script."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD

import functrain
from functrain import Hook, Shell, Stage, TrainState

Call = tuple[str, Stage, bool]


def scalar(value: float = 0.0) -> nn.Linear:
    """Build a model of one weight."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def shell_of(model: nn.Module, hooks: object, **options: Any) -> Shell:
    """Build a shell of a model and an SGD of learning rate 1, so that `-weight` reads as what was applied."""
    decay = options.pop("weight_decay", 0.0)
    optimizer = SGD((p for p in model.parameters() if p.requires_grad), lr=1.0, weight_decay=decay)
    return functrain.Shell(model, optimizer, hooks, **options)


def push(model: nn.Module, gradient: float) -> Tensor:
    """Return a loss whose gradient is this number, in every parameter that is trained."""
    return sum(parameter.sum() for parameter in model.parameters() if parameter.requires_grad) * gradient


def train(shell: Shell, model: nn.Module, *gradients: float) -> None:
    """Run one micro-batch per gradient."""
    for gradient in gradients:
        with shell.batch():
            shell.update(push(model, gradient))


def recorder(name: str, log: list[Call], answers: Mapping[Stage, object] | None = None, **options: Any) -> Hook:
    """Build a hook that writes down its calls, and gives the scripted verdict or True."""

    def record(state: TrainState, stage: Stage, will_skip: bool) -> tuple[TrainState, object, Tensor]:
        log.append((name, stage, will_skip))
        return state, (answers or {}).get(stage, True), state.loss

    return functrain.hook(record, name=name, **options)


def script(stage: Stage, batches: Collection[int], **options: Any) -> Hook:
    """Build a hook that vetoes one stage in the given batches."""

    def veto(state: TrainState, _stage: Stage, _will_skip: bool) -> tuple[TrainState, bool, Tensor]:
        return state, state.clock.batch not in batches, state.loss

    return functrain.hook(veto, **{"name": "script", "stages": stage, **options})


def watcher(stage: Stage, look: Callable[[TrainState], object], **options: Any) -> Hook:
    """Build a hook that shows the state of one stage to a function."""

    def watch(state: TrainState, _stage: Stage, _will_skip: bool) -> tuple[TrainState, bool, Tensor]:
        look(state)
        return state, True, state.loss

    return functrain.hook(watch, **{"name": "watcher", "stages": stage, **options})
