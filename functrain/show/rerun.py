"""A recorded run in its own interpreter again, from a snapshot on, with other hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from functrain import _tree
from functrain._errors import SkipLimitError
from functrain._fold import Pipeline
from functrain._stage import Stage
from functrain._state import EMPTY, TrainState
from functrain._tree import FrozenMap, thaw
from functrain._wrapper import innermost
from functrain.pure.engine import TrainStep
from functrain.shell.shell import Shell
from functrain.shell.snapshot import Snapshot, adopt, copied, duplicate, set_random_states
from functrain.show.carried import carried
from functrain.show.program import Act
from functrain.show.tracing import TracedPipeline

Loss: TypeAlias = Callable[[Any, Any], Tensor]


class ShellRerun:
    """A fresh shell, brought to a snapshot.

    Raises:
        TypeError: the run was not recorded by a shell, or there is no loss.
        ValueError: a shell of another model, or with other optimizers.
    """

    def __init__(self, shell: Shell, hooks: TracedPipeline, recorded: Pipeline, start: Snapshot, loss: Any) -> None:
        """Write the snapshot into the shell; slots of new hooks are built on its weights."""
        _require(start, loss)
        self.driver = driver = shell._driver  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the other half of it
        self.shell, self.loss, self.hooks, self.limits = shell, loss, hooks, list[str]()
        _require_alike(driver.state, start, driver.applier.optimizers.by_key)
        modules = driver.applier.models.modules
        self.model: Any = next(iter(modules.values())) if len(modules) == 1 else dict(modules)
        start = duplicate(start)
        weights = driver.state.replace(params=start.state.params, buffers=start.state.buffers)
        driver.state = driver.pipeline.prepared(driver.applier.write(weights))
        driver.fire(Stage.SETUP)
        state = carried(recorded, hooks, start.state, driver.state)
        adopt(driver, Snapshot(state, start.optimizers, start.schedulers, start.random))

    @property
    def state(self) -> TrainState:
        """The state as it is now, on the tensors of the shell."""
        return self.driver.state

    def present(self, act: Act) -> None:
        """Run a micro-batch on its own data and random numbers; a skip limit is noted, and the run goes on."""
        taken = _taken(act)
        set_random_states(taken.random)
        batch = thaw(copied(taken.state.batch))
        try:
            with self.shell.batch(batch, last=bool(taken.state.window.last)):
                loss = self.loss(self.model, batch)
                if act.column.updated:
                    self.shell.update(loss, self._weight(act))
        except SkipLimitError as error:
            self.limits.append(str(error))

    def _weight(self, act: Act) -> Any:
        """Return the weight that the micro-batch was given; a function of the batch gives it again by itself."""
        accumulate = innermost(self.hooks.member("accumulate"))
        own = accumulate is None or getattr(accumulate, "weight", None) is not None
        return None if own else act.column.weight

    def flush(self) -> None:
        """End the epoch."""
        try:
            self.shell.flush()
        except SkipLimitError as error:
            self.limits.append(str(error))


class PureRerun:
    """A pure run, from a snapshot on.

    Raises:
        TypeError: the run was not recorded by the pure engine.
        ValueError: another optimizer.
    """

    def __init__(self, run: TrainStep, hooks: TracedPipeline, recorded: Pipeline, start: Snapshot) -> None:
        """Build the slots of new hooks on the snapshot's weights."""
        old = start.state
        if not isinstance(old.clock.batch, Tensor):
            msg = "the run was recorded by a shell, and make(hooks) returned a pure step; return functrain.Shell(...)"
            raise TypeError(msg)
        fresh = run.init(thaw(old.params), thaw(old.buffers), seed=int(old.rng))
        if _tree.structure(fresh.opt) != _tree.structure(old.opt) and fresh.grads.keys() == old.grads.keys():
            _require_optimizers(fresh, old)
        self.run, self.limits = run, list[str]()
        self.state = carried(recorded, hooks, old, fresh)

    def present(self, act: Act) -> None:
        """Run a micro-batch on its own data and random numbers."""
        taken = _taken(act)
        set_random_states(taken.random)
        self.state = self.run.step(self.state, copied(taken.state.batch))

    def flush(self) -> None:
        """End the epoch."""
        self.state = self.run.flush(self.state)


def _taken(act: Act) -> Snapshot:
    """Return the snapshot of a micro-batch."""
    if act.snapshot is None:
        raise AssertionError(act)  # pragma: no cover - for the type checker
    return act.snapshot


def _require(start: Snapshot, loss: Any) -> None:
    """Refuse what a shell cannot run again."""
    if isinstance(start.state.clock.batch, Tensor):
        msg = (
            "the run was recorded by the pure engine, and make(hooks) returned a Shell; "
            "return functrain.pure.train_step(loss_fn, optimizer, hooks)"
        )
        raise TypeError(msg)
    if not callable(loss):
        msg = f"a shell needs loss_fn(model, batch), the one of the recorded run, to run it again; got {loss!r}"
        raise TypeError(msg)
    if isinstance(start.state.batch, FrozenMap) and not start.state.batch:
        msg = "the recorded micro-batches hold no data to run them on again: write `with shell.batch(batch):`"
        raise ValueError(msg)


def _require_alike(fresh: TrainState, start: Snapshot, optimizers: Mapping[str, Any]) -> None:
    """Refuse a shell that the snapshot does not fit."""
    for name in ("params", "buffers"):
        ours, theirs = (_tree.paths(getattr(each, name), f"state.{name}") for each in (start.state, fresh))
        for path in (*ours, *theirs):
            kinds = [_kind(held.get(path)) for held in (ours, theirs)]
            if kinds[0] != kinds[1]:
                msg = (
                    f"make(hooks) built another model than the recorded one: {path} was {kinds[0]} and is {kinds[1]}; "
                    "let it build model and optimizer as they were"
                )
                raise ValueError(msg)
    if optimizers.keys() != start.optimizers.keys():
        msg = f"make(hooks) built optimizers {sorted(optimizers)}; the recorded run had {sorted(start.optimizers)}"
        raise ValueError(msg)
    for key, optimizer in optimizers.items():
        kept, made = ([sorted(group) for group in groups] for groups in (_groups(start, key), optimizer.param_groups))
        if kept != made:
            raise ValueError(ANOTHER.format(key=key, made=made, kept=kept))


def _groups(start: Snapshot, key: str) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer as they were saved."""
    return start.optimizers[key]["param_groups"]


ANOTHER = (
    "make(hooks) built another optimizer {key!r}: its parameter groups have {made}, and the recorded ones {kept}; a "
    "replay changes the hooks alone"
)


def _kind(leaf: Tensor | None) -> str:
    return "not there" if leaf is None else f"a tensor {tuple(leaf.shape)} {leaf.dtype}"


def _require_optimizers(fresh: TrainState, old: TrainState) -> None:
    """Refuse a pure optimizer that does not go on from the state of another one."""
    for key in {*fresh.opt, *old.opt}:
        kept, made = ({*each.opt.get(key, EMPTY)} for each in (old, fresh))
        if kept != made:
            msg = (
                f"make(hooks) built another optimizer {key!r}: it keeps {sorted(made)}, and the recorded one "
                f"{sorted(kept)}; a replay changes the hooks alone"
            )
            raise ValueError(msg)
