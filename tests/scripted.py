"""Hooks that answer, raise or look by script, and a shell of two models, each with its own optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.optim import SGD

import functrain
from functrain import Hook, MixedPrecision, Shell, Stage, TrainState
from tests.scalars import Weight

STEP = Stage.DO_OPTIMIZER_STEP


class Planned(RuntimeError):  # noqa: N818 - it is no error, it is planned
    """What a test raises on purpose."""


def half(**options: Any) -> MixedPrecision:
    """Return a float16 hook with a scale of 4."""
    return MixedPrecision(**{"precision": "float16", "init_scale": 4.0, **options})


def vetoing(batches: Collection[int], *, stage: Stage = STEP, priority: int = 40, name: str = "veto") -> Hook:
    """Return a hook that vetoes one stage in the given batches."""

    def veto(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        return state, state.clock.batch not in batches, state.loss

    return functrain.hook(veto, name=name, stages=stage, priority=priority)


def raising(stage: Stage, fuse: list[BaseException], *, priority: int = 50, name: str = "bomb") -> Hook:
    """Return a hook that raises at one stage what lies in the fuse, each once."""

    def explode(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        if fuse:
            raise fuse.pop()
        return state, True, state.loss

    return functrain.hook(explode, name=name, stages=stage, priority=priority)


def looking(stage: Stage, look: Callable[[TrainState], object], *, priority: int = 90, name: str = "look") -> Hook:
    """Return a hook that shows the state of one stage to a function."""
    return functrain.observe(name, lambda state, _stage: look(state), stages=stage, priority=priority)


def writing_gradient(value: float, batches: Collection[int], *, priority: int = 50, model: str = "main") -> Hook:
    """Return a hook that puts a number into every gradient of one model just before the step."""

    def write(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        if state.clock.batch in batches:
            filled = {name: torch.full_like(grad, value) for name, grad in state.grads[model].items()}
            state = state.replace(grads=state.grads | {model: filled})
        return state, True, state.loss

    return functrain.hook(write, name="write", stages=STEP, priority=priority, writes={"grads"})


def pair_shell(hooks: Any, schedulers: Any = None, **options: Any) -> Shell:
    """Return a shell of two weights, "a" and "b", each with its own SGD of learning rate 1."""
    models = {"a": Weight(), "b": Weight()}
    optimizers = {key: SGD(each.parameters(), lr=1.0) for key, each in models.items()}
    made = {key: schedulers(each) for key, each in optimizers.items()} if schedulers else None
    return Shell(models, optimizers, hooks, made, **options)


def step_pair(shell: Shell, **slopes: float) -> None:
    """Run one micro-batch in which each model named gets the gradient named, and the others none."""
    modules = shell._driver.applier.models.modules
    with shell.batch():
        shell.update(sum((modules[key](slope) for key, slope in slopes.items()), torch.zeros(())))


def pair_applied(shell: Shell) -> dict[str, float]:
    """Return -w of each model."""
    return {key: -held["w"].item() for key, held in shell.state.params.items()}


def scaling(shell: Shell) -> tuple[float, int]:
    """Return loss scale and growth tracker."""
    return shell.state.scaler["scale"], shell.state.scaler["growth_tracker"]
