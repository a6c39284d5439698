"""Hooks that only look."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from functrain._hook import Hook, Outcome
from functrain._select import Flag
from functrain._stage import Stage
from functrain._state import TrainState


class Observer(Hook):
    """Made by :func:`observe`."""

    function: Callable[[TrainState, Stage], object]

    @property
    def may_drop(self) -> bool:
        """An observer never vetoes."""
        return False

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - part of a hook
        """Show the state to the function, whose result is not read."""
        self.function(state, stage)
        return Outcome(state, True, state.loss)


def observe(
    name: str,
    function: Callable[[TrainState, Stage], object],
    *,
    stages: Stage | Iterable[Stage] = Stage.AFTER_OPTIMIZER_STEP,
    priority: int = 50,
) -> Hook:
    """Look at the state without changing it: the function's result is not read.

    >>> seen = []
    >>> look = observe("look", lambda state, stage: seen.append(stage))
    >>> _ = look(TrainState(), Stage.AFTER_OPTIMIZER_STEP, False); seen
    [Stage.AFTER_OPTIMIZER_STEP]
    """
    return Observer(name=name, function=function, stages=stages, priority=priority)  # pyright: ignore[reportArgumentType]
