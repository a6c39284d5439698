"""The shell: a pipeline of hooks on real modules, optimizers and schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from functrain._fold import Pipeline, fold
from functrain._select import Number
from functrain._stage import Stage
from functrain._state import TrainState
from functrain.shell import dictionaries, gathering, sharded
from functrain.shell.averaging import Averages
from functrain.shell.batch_norm import Forward, settling
from functrain.shell.best import Best, best_of
from functrain.shell.flush import close_epoch, flush_window
from functrain.shell.lifecycle import close_hooks, entered_hooks
from functrain.shell.metrics import read_metrics
from functrain.shell.microbatch import MicroBatch
from functrain.shell.setup import build_driver
from functrain.shell.shown import Swap
from functrain.shell.snapshot import Snapshot, restore, snapshot
from functrain.shell.validation import consume, over_ranks

if TYPE_CHECKING:
    from functrain.disk.conflicts import OnConflict, Report
    from functrain.disk.packed import Packed


class Shell:
    """Runs the same pure pipeline as the engine, and applies the state to real objects, in place.

    Args:
        models: one module, a sequence ("0", "1", ...) or a mapping.
        optimizers: one, a sequence or a mapping; together they hold each parameter at most once.
        hooks: a hook, a pipeline, or a list of both.
        schedulers: aligned with the optimizers; None where an optimizer has none.
        scaler: a ``torch.amp.GradScaler`` to start from and to keep in step with the state.
        strict: run undonated, and check structure, purity and writes of every hook at every call.
        seed: of ``state.rng``, from which hooks draw; what modules draw comes from torch's generators. A restored run
            keeps the one that was saved.

    Raises:
        ValueError: a combination that could not train, with the reason.
        KeyError: a hook that names a model there is not.

    >>> from functrain import Accumulate, EMA
    >>> model = nn.Linear(1, 1)
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), Accumulate(every=2) + EMA())
    >>> for _ in range(4):
    ...     with shell.batch():
    ...         shell.update(model(torch.ones(1, 1)).square().mean())
    >>> shell.state.clock.batch, shell.state.clock.step
    (4, 2)
    """

    @torch.inference_mode(mode=False)
    def __init__(
        self,
        models: Any,
        optimizers: Any,
        hooks: Any,
        schedulers: Any = None,
        scaler: torch.amp.GradScaler | None = None,
        strict: bool = False,  # noqa: FBT002 - the name of the design
        *,
        seed: int = 0,
    ) -> None:
        """Build the first state, check the configuration, fire SETUP."""
        self.pipeline: Pipeline = fold(*hooks) if isinstance(hooks, list | tuple) else fold(hooks)
        self._driver = build_driver(self.pipeline, models, optimizers, schedulers, scaler, strict, seed)
        self._averages = Averages(self._driver)
        self._open: MicroBatch | None = None
        self._contexts = ExitStack()
        self._driver.fire(Stage.SETUP)

    @property
    def state(self) -> TrainState:
        """The current state; during a batch the one that the next hook will see."""
        return self._driver.state

    def batch(self, batch: Any = None, last: bool = False) -> MicroBatch:  # noqa: FBT002 - a fact about the data
        """Open a micro-batch, in which the forward runs and :meth:`update` is called once.

        Args:
            batch: what hooks see as ``state.batch``.
            last: no micro-batch follows in this epoch, so that a partial window closes here.

        Raises:
            RuntimeError: when it is entered inside another batch, or inside :meth:`averaged`.
        """
        return MicroBatch(self._driver, batch, last, self._admit)

    def _admit(self, batch: MicroBatch) -> None:
        """Take a batch that is being entered for the open one; it may have been made long before."""
        self._refuse_inside_averages("shell.batch()")
        if self._open is not None and self._open.is_open:
            msg = "shell.batch() inside another batch(); leave the first one before the next forward"
            raise RuntimeError(msg)
        self._open = batch

    def update(self, loss: Tensor, weight: Number | None = None, losses: Mapping[str, Tensor] | None = None) -> None:
        """Run backward, hooks, optimizers, schedulers and clock on the loss of this micro-batch.

        Args:
            loss: 0-d tensor with a graph.
            weight: of this micro-batch in a weighted window: tokens, atoms, samples.
            losses: named components, kept in ``state.metrics`` for logging.

        Raises:
            RuntimeError: outside ``batch()``, a second time, or inside :meth:`averaged`.
            TypeError, ValueError: a loss or a weight that cannot be used.
            SkipLimitError: too many skips in a row.
        """
        self._refuse_inside_averages("shell.update()")
        if self._open is None or not self._open.is_open:
            msg = "shell.update(loss) belongs inside `with shell.batch():`"
            raise RuntimeError(msg)
        self._open.update(loss, weight, losses)

    def flush(self) -> None:
        """Close a partial window by the pipeline's own policy, and end the epoch, also if that raises.

        Raises:
            RuntimeError: in an open batch, or inside :meth:`averaged`.
            SkipLimitError: too many skips in a row.
        """
        self._refuse_inside_averages("shell.flush()")
        self._refuse_inside_batch("shell.flush()")
        try:
            flush_window(self._driver)
        finally:
            close_epoch(self._driver)

    def validated(
        self, summary: Mapping[str, Any], metric: str | Callable[[Mapping[str, Any]], Any] = "total_loss"
    ) -> None:
        """Fire AFTER_VALIDATION, then step the schedulers that wait for a metric.

        On several ranks all must call it, at the same place: each gives what it found on its own part, or on all, and
        what hooks and schedulers see are the means, so that all ranks decide the same.

        Args:
            summary: what a validation found; hooks see it as ``state.validation``.
            metric: key of the summary, or a function of it.

        Raises:
            KeyError: no such key, if a scheduler waits for it; lists those there are.
            ValueError: ranks that give different keys.
        """
        consume(self._driver, over_ranks(self._driver, summary), metric)

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Return ``state.metrics`` and the loss as numbers, averaged over the ranks of a run.

        Nothing is exchanged or read before somebody asks. On several ranks all must ask, at the same place: it is one
        collective. What some rank has not measured is NaN.

        >>> model = nn.Linear(1, 1)
        >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), [])
        >>> with shell.batch():
        ...     shell.update(model(torch.ones(1, 1)).square().mean() * 0)
        >>> shell.metrics()
        {'loss': 0.0}
        """
        return read_metrics(self._driver)

    def averaged(
        self, name: str = "ema", *, batch_norm_from: Iterable[Any] | None = None, forward: Forward | None = None
    ) -> Swap:
        """Let the model hold the averaged weights inside the context: same storage, re-entrant, exception-safe.

        Args:
            name: of the average.
            batch_norm_from: batches to re-estimate the statistics of BatchNorm from, for as long as the context lasts.
            forward: ``forward(model, batch)`` for them; see :func:`reestimate_batch_norm`.

        Raises:
            KeyError: no such average.
            RuntimeError: before its first update.
            ValueError: nothing to re-estimate, or nothing to do it from.
        """
        return self._averages.swapped(name, settling(batch_norm_from, forward))

    @torch.inference_mode(mode=False)
    def averaged_module(
        self,
        name: str = "ema",
        module_factory: Callable[[], nn.Module] | None = None,
        *,
        batch_norm_from: Iterable[Any] | None = None,
        forward: Forward | None = None,
    ) -> nn.Module:
        """Return a separate module with the averaged weights: the same object each time, refreshed.

        Args:
            name: of the average.
            module_factory: makes the module, once; by default it is a copy of the model.
            batch_norm_from: batches to re-estimate the statistics of BatchNorm from; the model keeps its own.
            forward: ``forward(module, batch)`` for them; see :func:`reestimate_batch_norm`.

        Raises:
            KeyError: no such average.
            RuntimeError: before its first update; says when that will be.
            ValueError: nothing to re-estimate, or nothing to do it from; a factory of another model.
        """
        module = self._averages.module(name, module_factory)
        if (settle := settling(batch_norm_from, forward)) is not None:
            settle(module)
        return module

    def best(self, name: str = "best") -> Best:
        """Return what a ``BestAverage`` has kept: score, step, ``state_dict()`` and ``load_into(module)``.

        Raises:
            KeyError: no such hook.
            RuntimeError: no validation has had a score.
        """
        return best_of(self._driver, name)

    @torch.inference_mode(mode=False)
    def load_average(self, name: str, stored: Mapping[str, Any]) -> None:
        """Take over an average that nvalchemi-toolkit's ``EMAHook.state_dict()`` has saved, all or nothing.

        Raises:
            ValueError: a setting that differs from the hook's.
            KeyError: no such average, or keys and tensors that do not fit.
        """
        self._averages.load(name, stored)

    @torch.inference_mode(mode=False)
    def to_pure(self) -> TrainState:
        """Return the state in the form of the pure engine, to go on with ``pure.train_step(...)`` of the same hooks.

        Raises:
            ValueError: an optimizer that has no pure counterpart; a model that is sharded over ranks.

        See also: ``functrain.pure.to_shell``.
        """
        from functrain.pure.bridge import to_pure

        self._refuse_inside_averages("shell.to_pure()")
        self._refuse_shards("shell.to_pure()", "shell.gathered_state_dict(), and load it into a shell of one process")
        return to_pure(self._driver.state, self._driver.applier)

    @torch.inference_mode(mode=False)
    def snapshot(self) -> Snapshot:
        """Return a copy of everything, which stays true while training goes on."""
        return snapshot(self._driver, self._averages)

    @torch.inference_mode(mode=False)
    def restore(self, taken: Snapshot) -> None:
        """Go back to a snapshot of this shell.

        Raises:
            RuntimeError: in an open batch, or inside :meth:`averaged`.
        """
        self._refuse_inside_averages("shell.restore()")
        self._refuse_inside_batch("shell.restore()")
        restore(self._driver, taken)

    @torch.inference_mode(mode=False)
    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resume needs, as plain dicts of tensors and numbers; all copies."""
        return dictionaries.state_dict(self._driver, self._averages)

    @torch.inference_mode(mode=False)
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`, all or nothing.

        Raises:
            ValueError: a hook, an optimizer or a scheduler other than when it was saved: field, both values, remedy;
                or a leaf of another kind or shape.
            KeyError: what is missing, or what nobody knows.
            RuntimeError: in an open batch, or inside :meth:`averaged`.
        """
        self._refuse_inside_averages("shell.load_state_dict()")
        self._refuse_inside_batch("shell.load_state_dict()")
        dictionaries.load_state_dict(self._driver, state_dict)

    @torch.inference_mode(mode=False)
    def load(self, path: str | PathLike[str], data: Any = None, on_conflict: OnConflict = "raise") -> Report:
        """Resume from a checkpoint that :func:`functrain.save` has written, all or nothing.

        Args:
            path: of the checkpoint.
            data: a loader or sampler with ``load_state_dict``, to be given back what was saved of it.
            on_conflict: what holds where a hook was configured otherwise: "raise", or "stored", or "current".

        Returns:
            how checkpoint and pipeline fitted.

        Raises:
            FileNotFoundError: there is no such checkpoint.
            CheckpointError: it is damaged, or of another model, optimizer or structure.
            ValueError: a hook, an optimizer or a scheduler other than when it was saved: field, both values, remedy; a
                model that is sharded over ranks.
            RuntimeError: in an open batch, or inside :meth:`averaged`.

        Warns:
            UserWarning: hooks that are missing from the checkpoint or left over in it.
        """
        from functrain.disk.archive import opened
        from functrain.disk.shells import load_shell

        self._refuse_inside_averages("shell.load()")
        self._refuse_inside_batch("shell.load()")
        self._refuse_shards("shell.load()", "shell.load_sharded(path)")
        with opened(path) as archive:
            report = load_shell(self._driver, archive, data, on_conflict)
        report.warn()
        return report

    @torch.inference_mode(mode=False)
    def _packed(self, data: Any) -> Packed:
        """Return what :func:`functrain.save` writes, on the tensors of the run."""
        from functrain.disk.shells import packed_shell

        self._refuse_inside_batch("functrain.save()")
        self._refuse_shards("functrain.save()", "shell.save_sharded(path)")
        if self._driver.distributed is not None:
            sharded.refuse_open_window(self._driver)
        return packed_shell(self._driver, self._averages, data)

    @torch.inference_mode(mode=False)
    def save_sharded(self, path: sharded.Path) -> None:
        """Write a folder through ``torch.distributed.checkpoint``, each rank its part; all must call it.

        Raises:
            ValueError: a window is open.
            RuntimeError: in an open batch.

        See also: ``functrain.save``, whose checkpoints execute nothing when they are loaded; these are for files that
        you trust.
        """
        self._refuse_inside_batch("shell.save_sharded()")
        sharded.save_sharded(self._driver, self._averages, path)

    @torch.inference_mode(mode=False)
    def load_sharded(self, path: sharded.Path) -> None:
        """Resume from :meth:`save_sharded`, on any number of ranks, also on one alone; all must call it.

        Raises:
            ValueError: a window is open; or what :meth:`load_state_dict` refuses.
            RuntimeError: in an open batch, or inside :meth:`averaged`.
        """
        self._refuse_inside_averages("shell.load_sharded()")
        self._refuse_inside_batch("shell.load_sharded()")
        sharded.load_sharded(self._driver, self._averages, path)

    @torch.inference_mode(mode=False)
    def gathered_state_dict(self) -> dict[str, Any]:
        """Return :meth:`state_dict` with whole tensors on the CPU of rank 0, and an empty dict elsewhere.

        All ranks must call it. Tensors are gathered one at a time: no rank holds more than its part and one of them,
        but for rank 0. A shell of one process takes it with :meth:`load_state_dict`.

        Raises:
            ValueError: a window is open.
            RuntimeError: in an open batch.

        See also: :meth:`save_sharded`, where nobody needs the whole.
        """
        self._refuse_inside_batch("shell.gathered_state_dict()")
        return gathering.gathered_state_dict(self._driver, self._averages)

    @torch.inference_mode(mode=False)
    def gathered_average(self, name: str = "ema") -> dict[str, Tensor]:
        """Return an average as ``module.load_state_dict`` takes it, on the CPU of rank 0, and an empty dict elsewhere.

        All ranks must call it; it gathers as :meth:`gathered_state_dict` does.

        Raises:
            KeyError: no such average.
            RuntimeError: before its first update.

        See also: ``functrain.save_average``, which writes it.
        """
        return gathering.gathered_average(self._driver, self._averages, name)

    def _average_to_write(self, name: str) -> dict[str, Tensor]:
        """Return what :func:`functrain.save_average` writes; of a sharded model nothing on ranks that write nothing."""
        if gathering.first_shard(self._driver) is not None:
            return self.gathered_average(name)
        return {key: value.detach() for key, value in self.averaged_module(name).state_dict().items()}

    def _refuse_shards(self, what: str, instead: str) -> None:
        gathering.refuse_shards(self._driver, what, instead)

    def _refuse_inside_averages(self, what: str) -> None:
        if self._averages.active:
            msg = f"{what} inside shell.averaged(): the model holds the averaged weights; leave that context first"
            raise RuntimeError(msg)

    def _refuse_inside_batch(self, what: str) -> None:
        if self._open is not None and self._open.is_open and not self._open.done:
            msg = f"{what} inside an open batch(), whose window it would take away; call update() first, or leave it"
            raise RuntimeError(msg)

    def __enter__(self) -> Self:
        """Enter the hooks that are context managers, in order."""
        self._contexts = entered_hooks(self.pipeline)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the hooks in reverse; the state outlives the context."""
        self._contexts.__exit__(kind, error, trace)

    def close(self) -> None:
        """Call ``close`` of the hooks that have it, in reverse."""
        close_hooks(self.pipeline)
