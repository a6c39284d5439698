"""One run in two interpreters: a shell and a pure step from the same start, fed with the same micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from functrain import pure
from functrain._errors import SkipLimitError
from functrain._state import TrainState
from functrain.shell.shell import Shell
from functrain.testing.counterpart import tolerance_of
from functrain.testing.differences import unlike
from functrain.testing.events import Event, affected
from functrain.testing.shell_run import ShellRun
from functrain.testing.training import Training
from functrain.testing.trigger import Trigger

COMPARED = ("params", "buffers", "window", "clock", "hooks", "vetoes", "stepped", "metrics", "scaler")
"""The fields of the state that both interpreters keep; of losses the value is compared, and of gradients the effect."""


class Lone:
    """A run in a shell, which can be saved and restored; :class:`Twins` without the other one.

    Args:
        training: what is run.
        trigger: what drops micro-batches, if any shall be dropped.

    Attributes:
        run: the run as it is now.
    """

    def __init__(self, training: Training, trigger: Trigger | None = None) -> None:
        """Build the shell."""
        self.training = training.with_hooks(training.pipeline, trigger.hook) if trigger else training
        self.trigger = trigger
        self.run = ShellRun(self.training, trigger=trigger)
        self._saved: Any = None

    @property
    def shell(self) -> Shell:
        """The shell."""
        return self.run.shell

    @property
    def tolerance(self) -> float:
        """How far two interpreters may be apart after one step from the same state."""
        return tolerance_of(self.run.applier.optimizers)

    def happen(self, event: Event, place: int) -> None:
        """Let an event happen; ``place`` says with which micro-batch."""
        batch = affected(self.training.batch(place), event)
        acts = {"flush": self.flush, "save": self.save, "restore": self.restore, "swap": self.swap}
        if event in acts:
            acts[event]()
        elif event == "drop":
            self.drop(batch)
        else:
            self.present(batch)

    def present(self, batch: Any) -> None:
        """Run one micro-batch; a skip limit is raised after everything was done, so the run goes on."""
        self.run.present(batch)

    def drop(self, batch: Any) -> None:
        """Run one micro-batch that is vetoed at DO_BACKWARD."""
        with self.trigger.dropping() if self.trigger else nullcontext():
            self.present(batch)

    def flush(self) -> None:
        """End the epoch."""
        self.run.flush()

    def save(self) -> None:
        """Keep the run as it is now."""
        self._saved = self.run, self.shell.snapshot()

    def restore(self) -> None:
        """Go back to what was saved last."""
        self.run, taken = self._saved
        self.shell.restore(taken)

    def swap(self) -> None:
        """Go on in the other interpreter: there is none."""

    def align(self) -> None:
        """Let the other run go on from where this one is: there is none."""

    def differences(self, tolerance: float = 0.0) -> Iterator[str]:  # noqa: ARG002 - there is no other run
        """Yield nothing."""
        yield from ()


class Twins(Lone):
    """A shell and a pure run side by side.

    Raises:
        ValueError: an optimizer that has no pure counterpart, and no ``training.twin``.

    Attributes:
        state: the run in the pure engine, as it is now.
    """

    def __init__(self, training: Training, trigger: Trigger | None = None) -> None:
        """Build both from the same weights."""
        super().__init__(training, trigger)
        self._pure = self.training.pure(self.shell)
        models = self.run.models
        self.state: TrainState = self._pure.init(pure.parameters(models), pure.buffers(models), seed=training.seed)
        self._limits = (False, False)
        self.save()

    def present(self, batch: Any) -> None:
        """Run one micro-batch in both."""
        raised = self.run.present(batch)
        self.state = self._pure.step(self.state, batch)
        self._limits = raised, self._is_past_a_limit()

    def _is_past_a_limit(self) -> bool:
        """Ask the pure run what a shell says by itself."""
        try:
            pure.check(self.state)
        except SkipLimitError:
            return True
        return False

    def flush(self) -> None:
        """End the epoch in both."""
        super().flush()
        self.state = self._pure.flush(self.state)

    def save(self) -> None:
        """Keep both runs as they are now: a snapshot of the shell, and the state, which is its own."""
        self._saved = self.run, self.shell.snapshot(), self.state

    def restore(self) -> None:
        """Go back to what was saved last: the start, if nothing was."""
        self.run, taken, self.state = self._saved
        self.shell.restore(taken)

    def swap(self) -> None:
        """Let each run go on in the other interpreter."""
        moved = self.run.moved(self.state)
        self.align()
        self.run = moved

    def align(self) -> None:
        """Let the pure run go on from where the shell is."""
        self.state = self.shell.to_pure()

    def differences(self, tolerance: float = 0.0) -> Iterator[str]:
        """Yield ``path: shell's != pure`` for everything in which the two runs differ by more than a tolerance."""
        shell, other = self.shell.state, self.state
        for name in COMPARED:
            yield from unlike(getattr(shell, name), getattr(other, name), f"state.{name}", tolerance)
        for name in ("loss", "raw_loss"):
            ours, theirs = getattr(shell, name), getattr(other, name)
            yield from unlike(ours.detach().to(theirs.dtype), theirs, f"state.{name}", tolerance)
        if self.training.twin is None:
            yield from unlike(self.shell.to_pure().opt, other.opt, "state.opt", tolerance)
        if self._limits[0] != self._limits[1]:
            yield f"raises SkipLimitError: {self._limits[0]} != {self._limits[1]}"
