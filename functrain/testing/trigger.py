"""A hook that drops a micro-batch or raises when it is told to: what an oracle does to a run from inside."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from functrain._function_hook import hook
from functrain._hook import Hook, Outcome
from functrain._stage import Stage
from functrain._state import TrainState


class PlannedError(RuntimeError):
    """What a :class:`Trigger` raises, to be told from errors that nobody planned."""


STAGES = (
    Stage.BEFORE_BATCH,
    Stage.BEFORE_BACKWARD,
    Stage.DO_BACKWARD,
    Stage.AFTER_BACKWARD,
    Stage.BEFORE_OPTIMIZER_STEP,
    Stage.DO_OPTIMIZER_STEP,
    Stage.AFTER_OPTIMIZER_STEP,
)
"""Where a trigger may raise."""


class Trigger:
    """Holds the hook, and what it is to do next; told nothing, it is the identity.

    >>> trigger = Trigger()
    >>> with trigger.dropping():
    ...     trigger.hook(TrainState(), Stage.DO_BACKWARD, False).proceed
    False
    """

    def __init__(self) -> None:
        """Plan nothing."""
        self._drops = False
        self._raises: Stage | None = None
        self.hook: Hook = hook(self._act, name="trigger", priority=45, stages=STAGES)

    @contextmanager
    def dropping(self) -> Generator[None]:
        """Veto DO_BACKWARD inside the context."""
        self._drops = True
        try:
            yield
        finally:
            self._drops = False

    @contextmanager
    def raising(self, stage: Stage) -> Generator[None]:
        """Raise :class:`PlannedError` at a stage inside the context."""
        self._raises = stage
        try:
            yield
        finally:
            self._raises = None

    def _act(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:  # noqa: ARG002 - part of a hook
        if stage is self._raises:
            msg = f"planned at {stage.name}"
            raise PlannedError(msg)
        return Outcome(state, not (self._drops and stage is Stage.DO_BACKWARD), state.loss)
