"""The loop over epochs and batches, for those who do not want to write it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from functrain._stage import Stage
from functrain.shell.evaluation import chosen_averages, evaluating, first_metric, summary_of, updated_averages
from functrain.shell.evenly import END, evenly
from functrain.shell.flush import close_epoch, finish_training, flush_window
from functrain.shell.history import History
from functrain.shell.progress import Progress
from functrain.shell.progress import progress as progress_of
from functrain.shell.sharded import refuse_carried_window
from functrain.shell.shell import Shell
from functrain.shell.validation import consume, over_ranks

if TYPE_CHECKING:
    from functrain.disk.checkpoint import Checkpoint
    from functrain.disk.course import Course

Loss: TypeAlias = Callable[[Any, Any], Tensor]
Validate: TypeAlias = Callable[[Any], Any]


def fit(  # noqa: PLR0913, PLR0917 - the parts of a loop
    shell: Shell,
    loader: Iterable[Any],
    loss_fn: Loss,
    epochs: int,
    forward: Callable[[Any, Any], Any] | None = None,
    validate: Validate | None = None,
    validate_with: str | None = None,
    progress: bool = True,  # noqa: FBT002 - the name of the design
    checkpoint: Checkpoint | None = None,
    resume: str | PathLike[str] | None = None,
) -> History:
    """Train for some epochs, counted in batches, and fire all 18 stages in order.

    Args:
        shell: what to train.
        loader: iterated once per epoch; a sampler with ``set_epoch`` is told the epoch. On several ranks an epoch ends
            for all where the first of them has no batch left.
        loss_fn: ``loss_fn(model, batch)``; with ``forward`` it is ``loss_fn(forward(model, batch), batch)``.
        epochs: passes over the loader.
        forward: ``forward(model, batch) -> out``.
        validate: ``validate(model)`` after each epoch, in eval mode, without gradients, on averaged weights once there
            are any; returns a number ("total_loss") or a mapping of numbers. Of several ranks each validates, and what
            counts is the mean.
        validate_with: which average to use, where one model has several.
        progress: show loss, steps and skips on stderr, as a bar in terminals and notebooks, and elsewhere as a line now
            and then; of several ranks the first shows it.
        checkpoint: when to save, and where; of several ranks the first does.
        resume: a checkpoint to go on from, as :func:`functrain.latest` finds it; ``epochs`` counts those before it,
            too, and stages that were told before it are not told again. The run is then bitwise the uninterrupted one,
            if what the loader deals depends on generators alone, or if it has a ``state_dict``. The history goes on,
            too, from the file ``history.jsonl`` beside the checkpoints. None begins anew; that is what ``latest`` finds
            in a folder without a checkpoint, so that one program both starts a run and resumes it.

    Returns:
        the :class:`History` of the run. ``model`` is the module where there is one, else the mapping by key.

    Raises:
        ValueError: two averages of one model and no ``validate_with``; negative epochs; an iterator that is used up; a
            checkpoint of a model that is sharded over ranks, or of a window that several ranks carry over epochs; ranks
            of which only some have a batch.
        TypeError: epochs that are no int, a validation that gives no number.
        SkipLimitError: too many skips in a row.

    Warns:
        UserWarning: ranks with different numbers of batches, some of which are left out.

    >>> import torch
    >>> from functrain import ClipNorm
    >>> model = torch.nn.Linear(1, 1)
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), ClipNorm(max_norm=1.0))
    >>> history = fit(shell, [torch.ones(2, 1)] * 3, lambda model, x: model(x).square().mean(), 2, progress=False)
    >>> len(history.to_records()), shell.state.clock.epoch
    (6, 2)
    """
    from functrain.disk.course import Course

    _check_epochs(epochs)
    if checkpoint is not None:
        shell._refuse_shards("fit(checkpoint=...)", SHARDED)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as below
        refuse_carried_window(shell._driver)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as below
    course = Course(shell, loader, checkpoint, resume)
    return _Run(shell, loss_fn, forward, validate, validate_with, course).run(loader, epochs, progress=progress)


def _check_epochs(epochs: Any) -> None:
    """Refuse what is no count."""
    msg = f"epochs must be an int of at least 0, got {epochs!r}"
    if not isinstance(epochs, int) or isinstance(epochs, bool):
        raise TypeError(msg)
    if epochs < 0:
        raise ValueError(msg)


SHARDED = "shell.save_sharded(path) between two calls of fit, and shell.load_sharded(path) instead of resume="
USED_UP = (
    "the loader is an iterator and is used up: this epoch got no batch; give a list, a DataLoader, or an object whose "
    "__iter__ starts again"
)


class _Run:
    """One call of fit."""

    def __init__(
        self, shell: Shell, loss_fn: Loss, forward: Any, validate: Any, validate_with: str | None, course: Course
    ) -> None:
        self.shell, self.loss_fn, self.forward, self.validate = shell, loss_fn, forward, validate
        self.driver = shell._driver  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - fit is the shell's own loop
        modules = self.driver.applier.models.modules
        self.model: Any = next(iter(modules.values())) if len(modules) == 1 else dict(modules)
        self.averages = chosen_averages(shell.pipeline, validate_with) if validate else []
        self.history, self.course = course.history, course

    def run(self, loader: Iterable[Any], epochs: int, *, progress: bool) -> History:
        """Run the epochs."""
        total = _length(loader)
        first = self.course.epochs_done
        total, hidden = total and total * (epochs - first), not progress or self.driver.state.rank > 0
        with self.course, progress_of(total, self._shown, hidden=hidden) as bar:
            if not self.course.resumed:
                self.driver.fire(Stage.BEFORE_TRAINING)
            for epoch in range(first, epochs):
                self._run_epoch(loader, bar, may_be_empty=epoch == first)
            finish_training(self.driver)
        return self.history

    def _run_epoch(self, loader: Iterable[Any], bar: Progress, *, may_be_empty: bool) -> None:
        """Run one pass over the loader, close its window, validate."""
        before = len(self.history.raw)
        _tell_epoch(loader, int(self.driver.state.clock.epoch))
        if not self.course.inside_epoch:
            self.driver.fire(Stage.BEFORE_EPOCH)
        for batch, last in with_last(self._dealt(loader)):
            self._run_batch(batch, last=last)
            self.history.record(self.driver.state)
            bar.advance()
            self.course.after_batch()
        if not may_be_empty and len(self.history.raw) == before and iter(loader) is loader:
            raise ValueError(USED_UP)
        flush_window(self.driver)
        self.driver.fire(Stage.AFTER_EPOCH)
        summary = self._run_validation() if self.validate is not None else None
        close_epoch(self.driver)
        self.course.after_epoch(summary)

    def _dealt(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return the batches of an epoch, as many on every rank."""
        ranks = None if self.driver.distributed is None else self.driver.distributed.ranks
        return evenly(ranks, self.course.batches(), _length(loader), self.course.batches_done)

    def _run_batch(self, batch: Any, *, last: bool) -> None:
        """Run one micro-batch through its stages."""
        with self.shell.batch(batch, last):
            self.driver.fire(Stage.BEFORE_FORWARD)
            out = self.forward(self.model, batch) if self.forward else self.loss_fn(self.model, batch)
            self.driver.fire(Stage.AFTER_FORWARD)
            self.driver.fire(Stage.BEFORE_LOSS)
            self._fire_after_loss(loss := self.loss_fn(out, batch) if self.forward else out)
            self.shell.update(loss)
        self.driver.fire(Stage.AFTER_BATCH)

    def _fire_after_loss(self, loss: Any) -> None:
        """Let hooks look at the loss before the update begins."""
        if isinstance(loss, Tensor):
            self.driver.state = self.driver.state.replace(loss=loss, raw_loss=loss)
        self.driver.fire(Stage.AFTER_LOSS)

    def _shown(self) -> dict[str, Any]:
        """Return the texts beside the bar; reads the loss."""
        state = self.driver.state
        return {"loss": f"{float(state.raw_loss):.4g}", "steps": state.clock.step, "skips": state.clock.skipped}

    def _run_validation(self) -> dict[str, Any]:
        """Validate on averaged weights where there are any, in eval mode, and tell hooks and schedulers."""
        used = updated_averages(self.driver, self.averages)
        with ExitStack() as stack:
            for name in used.values():
                stack.enter_context(self.shell.averaged(name))
            stack.enter_context(evaluating(self.driver.applier.models.modules.values()))
            summary = summary_of(self.validate(self.model) if self.validate else 0.0)
        told = {"validated_with": self._told(used)} if self.averages else {}
        summary = over_ranks(self.driver, summary)
        self.history.record_validation(self.driver.state, summary | told)
        consume(self.driver, summary, first_metric)
        return summary

    def _told(self, used: dict[str, str]) -> str | dict[str, str]:
        """Say what was validated: the name of an average, or "raw"; for several models by key."""
        found = {key: used.get(key, "raw") for key in self.driver.applier.models.modules}
        return found if len(found) > 1 else next(iter(found.values()))


def with_last(loader: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield each batch with whether it is the last: one batch of look-ahead, so no length is needed.

    >>> list(with_last("ab"))
    [('a', False), ('b', True)]
    """
    batches = iter(loader)  # asked once: some loaders are their own iterators and would start again
    current = next(batches, END)
    while current is not END:
        following = next(batches, END)
        yield current, following is END
        current = following


def _tell_epoch(loader: Any, epoch: int) -> None:
    """Let a sampler that deals to one rank of several shuffle anew."""
    tell = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if callable(tell):
        tell(epoch)


def _length(loader: Any) -> int | None:
    """Return how many batches a loader will give, if it knows."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):  # all of them are in use for "that cannot be known"
        return None
