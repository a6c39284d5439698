"""A run to which things happen, and all that is noted while they do."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from functrain._stage import Stage
from functrain.testing.differences import unlike
from functrain.testing.events import Event
from functrain.testing.global_laws import flushes, frozen, not_shown, ready_averages, rolled_back
from functrain.testing.ledger import Ledger
from functrain.testing.resuming import recorded
from functrain.testing.shell_run import ShellRun
from functrain.testing.training import Training
from functrain.testing.trigger import STAGES, PlannedError, Trigger
from functrain.testing.twins import Lone, Twins

FAILURES = ("forward", "optimizer", *(stage.name for stage in STAGES))
"""Where an exception may be raised."""
BEFORE_THE_BACKWARD = ("forward", "BEFORE_BATCH", "BEFORE_BACKWARD", "DO_BACKWARD")
LONGEST_WINDOW = 64


class Watched:
    """A run in a shell, beside one in the pure engine or alone.

    Attributes:
        twins: the run, or both.
        ledger: what it has done, counted from outside.
        apart: where shell and pure engine differ.
        moved: what has changed although no optimizer stepped.
        lost: what did not come back as it was saved, or swapped.
    """

    def __init__(self, training: Training, *, beside_pure: bool) -> None:
        """Build everything, and save the start."""
        self.trigger = Trigger()
        self.twins = (Twins if beside_pure else Lone)(training, self.trigger)
        self.ledger = Ledger()
        self.ledger.watch(self.run.applier.optimizers.by_key)
        self.apart: list[str] = []
        self.moved: list[str] = []
        self.lost: list[str] = []
        self._ran = False
        self.save()

    @property
    def run(self) -> ShellRun:
        """The run in the shell."""
        return self.twins.run

    @contextmanager
    def _looking(self) -> Generator[None]:
        """Note whether an optimizer steps inside, and if not, what changes all the same."""
        if self.twins.tolerance:  # what rounding has set apart must not add up
            self.twins.align()
        before, steps = recorded(self.run), dict(self.ledger.steps)
        yield
        self._ran = self.ledger.steps != steps
        if not self._ran:
            self.moved += unlike(frozen(recorded(self.run)), frozen(before), "shell")

    def _compare(self) -> None:
        self.apart += self.twins.differences(self.twins.tolerance)

    def _count(self) -> None:
        """Count a micro-batch."""
        self.ledger.add(presented=1, boundary=bool(self.run.shell.state.window.boundary), ran=self._ran)

    def present(self, event: Event, place: int) -> None:
        """Present a micro-batch in which something happens."""
        with self._looking():
            self.twins.happen(event, place)
        self._count()
        self._compare()

    def complete(self, place: int) -> None:
        """Present micro-batches until a window has closed."""
        for each in range(place, place + LONGEST_WINDOW):
            self.present("fine", each)
            if self.run.shell.state.window.boundary:
                break

    def leave(self, place: int) -> None:
        """Leave a micro-batch without an update, which a shell alone can."""
        with self._looking():
            self.run.leave(self.twins.training.batch(place))
        self._count()
        self.twins.align()

    def flush(self) -> None:
        """End the epoch."""
        closes = flushes(self.run)
        with self._looking():
            self.twins.flush()
        self.ledger.add(presented=0, boundary=closes, ran=self._ran)
        self._compare()

    def save(self) -> None:
        """Keep everything."""
        self.twins.save()
        self._saved = recorded(self.run), self.run.shell.state_dict(), self.ledger.copied()

    def restore(self, by: str) -> None:
        """Go back to what was kept last, by its snapshot or its state dict."""
        kept, saved, counts = self._saved
        if by == "snapshot":
            self.twins.restore()
        else:
            self.run.shell.load_state_dict(saved)
        self.ledger.go_back(counts)
        self.lost += unlike(recorded(self.run), kept, "shell")
        if by == "snapshot":
            self._compare()
        else:  # vetoes and metrics, of one batch only, are in no state dict
            self.twins.align()

    def swap_averages(self, *, nested: bool, fails: bool) -> None:
        """Let the model hold each average in turn, or all at once, and leave by the end or by an exception."""
        before, names = recorded(self.run), ready_averages(self.run)
        one_by_one = [[name] for name in names]
        for group in [names + names[::-1]] if names and nested else one_by_one:
            with suppress(PlannedError), ExitStack() as stack:
                for name in group:
                    stack.enter_context(self.run.shell.averaged(name))
                    self.lost += not_shown(self.run, name)
                self.lost += [*unlike(recorded(self.run), before, "inside averaged(): shell"), *self._unrefused()]
                if fails:
                    raise PlannedError
            self.lost += unlike(recorded(self.run), before, "after averaged(): shell")

    def _unrefused(self) -> Iterator[str]:
        """Yield what would train an average."""
        with suppress(RuntimeError):
            self.run.shell.flush()
            yield "inside averaged(): shell.flush() was done != refused"

    def fail(self, place: int, where: str) -> None:
        """Present a micro-batch in which an exception is raised."""
        before = recorded(self.run)
        with self._looking():
            raised = self._failing(place, where)
        if not raised or self._ran:
            self._count()
            self.twins.align()
            return
        self.moved += unlike(rolled_back(recorded(self.run)), rolled_back(before), "shell")
        if where in BEFORE_THE_BACKWARD:
            self._compare()
        else:
            self.moved += unlike(self.run.shell.state.window.entered, 0, "state.window.entered")
            self.twins.align()

    def _failing(self, place: int, where: str) -> bool:
        """Tell whether what was planned was raised; no optimizer runs inside a window, and then none raises."""
        batch = self.twins.training.batch(place)
        with suppress(PlannedError), self._planned(where):
            if where == "forward":
                with self.run.shell.batch(batch):
                    self.run.training.loss(self.run.models, batch)
                    raise PlannedError
            self.run.present(batch)
            return False
        return True

    @contextmanager
    def _planned(self, where: str) -> Generator[None]:
        """Plan an exception for a stage, or for the last of the optimizers."""
        with ExitStack() as stack:
            if where in Stage.__members__:
                stack.enter_context(self.trigger.raising(Stage[where]))
            elif where == "optimizer":
                last = list(self.run.applier.optimizers.by_key.values())[-1]
                stack.callback(last.register_step_pre_hook(_raise).remove)
            yield


def _raise(*_: Any) -> None:
    raise PlannedError
