"""A training run in a shell, which goes on after a skip limit."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

from functrain import pure
from functrain._errors import SkipLimitError
from functrain._state import TrainState
from functrain.shell.shell import Shell
from functrain.testing.events import Event, affected
from functrain.testing.training import Training
from functrain.testing.trigger import Trigger


class ShellRun:
    """A shell, what it trains, and what happens to it.

    Args:
        training: what is run; with the hook of ``trigger`` in its pipeline if there is one.
        shell: to go on with; by default one at the start of the run.
        trigger: what drops micro-batches.
    """

    def __init__(self, training: Training, shell: Shell | None = None, trigger: Trigger | None = None) -> None:
        """Look up the models."""
        self.training, self.trigger = training, trigger
        self.shell = training.shell() if shell is None else shell
        self.applier = self.shell._driver.applier  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - an oracle looks inside
        modules = self.applier.models.modules
        self.models: Any = modules["main"] if set(modules) == {"main"} else modules

    @property
    def shows_an_average(self) -> bool:
        """Whether a model holds averaged weights at the moment."""
        return self.shell._averages.active  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the same

    def happen(self, event: Event, place: int) -> None:
        """Let an event happen; ``place`` says with which micro-batch. What only two runs can do is nothing here."""
        if event == "flush":
            self.flush()
        elif event == "drop":
            self.drop(self.training.batch(place))
        elif event not in ("save", "restore", "swap"):
            self.present(affected(self.training.batch(place), event))

    def present(self, batch: Any) -> bool:
        """Run one micro-batch; tell whether a skip limit was raised, which is after everything was done."""
        try:
            with self.shell.batch(batch):
                self.shell.update(self.training.loss(self.models, batch))
        except SkipLimitError:
            return True
        return False

    def drop(self, batch: Any) -> bool:
        """Run one micro-batch that is vetoed at DO_BACKWARD, or, without a trigger, gets no update at all."""
        if self.trigger:
            with self.trigger.dropping():
                return self.present(batch)
        return self.leave(batch)

    def leave(self, batch: Any) -> bool:
        """Run the forward of one micro-batch and leave it without an update."""
        try:
            with self.shell.batch(batch):
                self.training.loss(self.models, batch)
        except SkipLimitError:
            return True
        return False

    def flush(self) -> None:
        """End the epoch."""
        with suppress(SkipLimitError):
            self.shell.flush()

    def fresh(self) -> ShellRun:
        """Return the same run at its start: another shell, other models."""
        return ShellRun(self.training, trigger=self.trigger)

    def moved(self, state: TrainState) -> ShellRun:
        """Return a run on copies of the models that goes on from a state of the pure engine."""
        models = copy.deepcopy(self.models)
        optimizers = self.training.optimizer_of(models)
        shell = pure.to_shell(state, models, optimizers, hooks=self.training.pipeline)
        return ShellRun(self.training, shell, self.trigger)
