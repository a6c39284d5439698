"""A run of ``fit`` on its way through the data: where it stands, when it is saved, and where it resumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from functrain.disk.checkpoint import Checkpoint
from functrain.disk.generators import generator_states, set_generators
from functrain.disk.history_log import HistoryLog
from functrain.disk.interruption import Interruption
from functrain.disk.position import position_of, seed_states, set_position, set_seeds

if TYPE_CHECKING:
    from functrain.shell.shell import Shell

END: Any = object()
FIELDS: dict[str, tuple[type[Any], ...]] = {
    "first_epoch": (int,),
    "batches": (int,),
    "seeds": (dict,),
    "random": (dict, type(None)),
}


class Course:
    """What ``fit`` asks for batches, and tells when one, or an epoch, is done.

    Its ``state_dict`` is what a checkpoint knows of the position in the data. A loader that has a ``state_dict`` knows
    itself where it is. Of another one the order is repeated: its generators, and those of the process, are set to where
    they were at the start of the epoch, and what has been trained on already is dealt and dropped.

    Attributes:
        history: of the run, with what came before the checkpoint, as far as it was saved by ``fit``.
        resumed: the run goes on from a checkpoint.
        first_epoch: the epoch that the clock had when the run began.
    """

    def __init__(
        self,
        shell: Shell,
        loader: Iterable[Any],
        checkpoint: Checkpoint | None,
        resume: str | PathLike[str] | None,
    ) -> None:
        """Load the checkpoint to resume from, if there is one, and the history before it."""
        self._shell, self._loader = shell, loader
        self._checkpoint, self._watches = checkpoint if shell.state.rank == 0 else None, checkpoint is not None
        self.resumed = resume is not None
        self.first_epoch, self._batches, self._skip = int(shell.state.clock.epoch), 0, 0
        self._seeds, self._random, self._loader_state = seed_states(loader), None, None
        self._log = HistoryLog(None if checkpoint is None else checkpoint.folder)
        self.history = self._log.history
        if resume is not None:
            self._resume(resume)
            self._log.resume(Path(resume), shell.state.clock)
        self._step = int(shell.state.clock.step)
        self._interruption = Interruption()
        self._open = ExitStack()

    def _resume(self, path: str | PathLike[str]) -> None:
        """Load a checkpoint; one that was saved without a position still counts epochs and batches."""
        self.first_epoch = -1
        self._shell.load(path, data=self)
        if self.first_epoch < 0:
            self.first_epoch, self._batches = 0, int(self._shell.state.clock.epoch_batch)
            self._skip = self._batches

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data."""
        return {
            "first_epoch": self.first_epoch,
            "batches": self._batches,
            "loader": self._loader_state,
            "seeds": self._seeds,
            "random": self._random,
        }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Go to a position in the data.

        Raises:
            ValueError: a position that ``fit`` has not written.
        """
        wrong = [name for name, kinds in FIELDS.items() if not isinstance(stored.get(name), kinds)]
        if wrong:
            raise ValueError(f"it was not saved by fit, which would have saved {wrong} with it; write shell.load(path)")
        self.first_epoch, self._batches = stored["first_epoch"], stored["batches"]
        self._seeds, self._random, self._loader_state = stored["seeds"], stored["random"], stored.get("loader")
        set_seeds(self._loader, self._seeds)
        set_position(self._loader, self._loader_state)
        self._skip = 0 if self._knows_itself else self._batches

    @property
    def _knows_itself(self) -> bool:
        return callable(getattr(self._loader, "load_state_dict", None)) and self._loader_state is not None

    @property
    def inside_epoch(self) -> bool:
        """Whether the run resumes in the middle of an epoch, whose beginning has been told to the hooks already."""
        return self.resumed and self._batches > 0

    @property
    def batches_done(self) -> int:
        """How many batches of this epoch lie behind."""
        return self._batches

    @property
    def epochs_done(self) -> int:
        """How many epochs lie behind."""
        return int(self._shell.state.clock.epoch) - self.first_epoch

    def batches(self) -> Iterator[Any]:
        """Deal the batches of an epoch, or what is left of it."""
        now, skip, self._skip = generator_states(), self._skip, 0
        if skip and self._random is not None:
            set_generators(self._random)
        elif not self._batches:
            self._random, self._seeds = now, seed_states(self._loader)
        dealt = iter(self._loader)
        for _ in range(skip):
            next(dealt, END)
        batch = next(dealt, END)
        if skip:
            set_generators(now)
        while batch is not END:
            yield batch
            self._note()
            batch = next(dealt, END)

    def _note(self) -> None:
        """Note where the loader is, before it is asked for a batch that waits until the one before it is done."""
        if self._checkpoint is not None:
            self._loader_state = position_of(self._loader)

    def after_batch(self) -> None:
        """Save on the edge of the step count, and where the run is interrupted."""
        self._batches += 1
        self._save(self._at_edge())

    def after_epoch(self, summary: Mapping[str, Any] | None) -> None:
        """Save at the end of an epoch."""
        self._batches, self._random, self._seeds = 0, None, seed_states(self._loader)
        self._note()
        if self._checkpoint is not None:
            if summary is not None:
                self._log.save()
                self._checkpoint.save_best(self._shell, summary, data=self)
            self._save(self._checkpoint.each_epoch or self._at_edge())

    def _at_edge(self) -> bool:
        """Tell whether the count of steps has just come to a multiple."""
        before, self._step = self._step, int(self._shell.state.clock.step)
        every = None if self._checkpoint is None else self._checkpoint.every
        return every is not None and self._step // every > before // every

    def _save(self, due: bool) -> None:
        """Save if it is time, or if somebody wants the run to end, who then has his way.

        Of several ranks each holds the gradients of its own micro-batches, so that they wait for the end of the window;
        and those that do not save go on until the one that does has ended.
        """
        in_parts = self._shell.state.world > 1 and bool(self._shell.state.window.entered)
        wanted = self._interruption.wanted is not None and not in_parts
        if self._checkpoint is not None and (due or wanted):
            self._log.save()  # first: the lines of a batch that no checkpoint knows of are dropped when they are read
            self._checkpoint.save(self._shell, data=self)
            if wanted:
                self._checkpoint.wait()
                self._interruption.act()

    def __enter__(self) -> Self:
        """Watch for interruptions, if there is something to be done about them."""
        if self._watches:
            self._open.enter_context(self._interruption)
        if self._checkpoint is not None:
            self._open.enter_context(self._checkpoint)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let signals act as before; wait for what is being written."""
        self._open.__exit__(kind, error, trace)
