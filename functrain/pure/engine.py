"""The whole step as one pure function: forward, backward, every stage of the fold, optimizers, counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from functrain import _scaler, _tree
from functrain._clock import any_of
from functrain._fold import Pipeline, fold
from functrain._select import Flag, both, equal, negate, select
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain._wrapper import innermost
from functrain.pure.backward import backward
from functrain.pure.donation import DONATED_AND_DIFFERENTIABLE, overwritten
from functrain.pure.numbers import tensored
from functrain.pure.own_code import with_own_code
from functrain.pure.pairs import as_optimizers
from functrain.pure.setup import Start, first_state, started
from functrain.pure.stepping import hyper_of, stepped
from functrain.pure.unused import require_batch, require_none, unused


class TrainStep(NamedTuple):
    """What :func:`train_step` returns.

    Attributes:
        init: ``init(params, buffers=None, seed=0, batch=None) -> state``. With an example batch the loss is run once,
            and parameters that it does not use have no gradient and are not stepped, as in ``torch.optim``; without
            one they have a gradient of zero, under which momentum and decay still move them. It must use whatever
            a later batch may use: what is left out is never trained.
        step: ``step(state, batch) -> state``.
        flush: ``flush(state) -> state``: close a partial window by policy, and end the epoch.

    >>> from functrain import Hook, pure
    >>> init, step, flush = pure.train_step(lambda params, buffers, x: params["w"] * x, pure.sgd(0.1), Hook())
    >>> state = step(init({"w": torch.ones(())}), torch.ones(()))
    >>> state.params["main"]["w"], int(flush(state).clock.epoch)
    (tensor(0.9000), 1)
    """

    init: Callable[..., TrainState]
    step: Callable[[TrainState, Any], TrainState]
    flush: Callable[[TrainState], TrainState]


def train_step(
    loss_fn: Callable[..., Any],
    optimizer: Any,
    hooks: Any,
    *,
    differentiable: bool = False,
    require_all_parameters: bool = False,
) -> TrainStep:
    """Return init, step and flush of a training run that is nothing but functions.

    ``step`` accepts ``torch.compile(fullgraph=True)``, ``torch.func.vmap`` and, with ``differentiable=True``,
    ``torch.func.grad`` through many steps. Vetoes are selected, never branched on.

    A compiled step needs less memory if the state that it is given may be overwritten: start with
    ``init(...).replace(donated=True)``, and keep no other reference to it.

    Args:
        loss_fn: ``(params, buffers, batch[, rng]) -> loss[, buffers]``, pure; see :func:`functional`.
        optimizer: :func:`sgd`, :func:`adam`, :func:`adamw`, any pair of ``init`` and ``update``, or
            ``{key: (pair, selector)}``.
        hooks: a hook, a pipeline, or a list of both.
        differentiable: keep the graph from one step to the next; detached otherwise.
        require_all_parameters: let ``init`` refuse parameters that the loss does not use; it then needs a batch.

    >>> from functrain import ClipNorm, pure
    >>> def loss_fn(params, buffers, batch):
    ...     return (params["w"] * batch).sum()
    >>> init, step, flush = train_step(loss_fn, pure.sgd(1.0), ClipNorm(max_norm=1.0))
    >>> step(init({"w": torch.zeros(2)}), torch.tensor([3.0, 4.0])).params["main"]["w"]
    tensor([-0.6000, -0.8000])

    See also: :class:`functrain.Shell`, which runs the same pipeline on real modules.
    """
    pipeline = fold(*hooks) if isinstance(hooks, list | tuple) else fold(hooks)
    engine = _Engine(pipeline, loss_fn, as_optimizers(optimizer), differentiable, require_all_parameters)
    return TrainStep(engine.init, with_own_code(engine.step), with_own_code(engine.flush))


class _Engine:
    """Pipeline, loss and optimizers of one run; holds nothing that changes."""

    def __init__(
        self, pipeline: Pipeline, loss_fn: Any, optimizers: Mapping[str, Any], differentiable: bool, requires_all: bool
    ) -> None:
        self.pipeline, self.loss_fn, self.optimizers = pipeline, loss_fn, optimizers
        self.differentiable, self.requires_all = differentiable, requires_all
        self.precision = innermost(pipeline.member("precision"))
        self.accumulate = innermost(pipeline.member("accumulate"))

    def init(
        self, params: Mapping[str, Any], buffers: Mapping[str, Any] | None = None, seed: int = 0, batch: Any = None
    ) -> TrainState:
        """Build the first state; parameters and buffers are copied unless the run is differentiable."""
        start = started(params, buffers, seed, copies=not self.differentiable)
        state = self._begun(start)
        left_out = self._unused(state, batch)
        return self._begun(start.without(left_out)) if left_out else state

    def _begun(self, start: Start) -> TrainState:
        """Return the state of a run that starts so."""
        return self.fire(first_state(self.pipeline, self.optimizers, start), Stage.SETUP)[0]

    def _unused(self, state: TrainState, batch: Any) -> list[tuple[str, str]]:
        """Return the trained parameters that an example batch does not reach; without one nothing is known."""
        if self.requires_all:
            require_batch(batch)
        if batch is None:
            return []
        state, _ = self.fire(self._opened(state, batch), Stage.BEFORE_BATCH)
        places = unused(self.pipeline, self.loss_fn, state)
        if self.requires_all:
            require_none(places)
        return places

    def step(self, state: TrainState, batch: Any) -> TrainState:
        """Run one micro-batch."""
        return self._kept_or_donated(state, lambda kept: self._advanced(kept, batch))

    def _kept_or_donated(self, state: TrainState, advanced: Callable[[TrainState], TrainState]) -> TrainState:
        """Return the state that follows; in the storage of a donated one, if that is what it is."""
        if not state.donated:
            return advanced(state)
        if self.differentiable:
            raise ValueError(DONATED_AND_DIFFERENTIABLE)
        return overwritten(state, advanced(state.replace(donated=False)))

    def _advanced(self, state: TrainState, batch: Any) -> TrainState:
        """Return the state after one micro-batch."""
        state = state if self.differentiable else _tree.map_leaves(_detached, state)
        state = self._opened(state, batch)
        self.pipeline.notice("batch", state)
        state, clears = self.fire(state, Stage.BEFORE_BATCH)
        state = select(clears, lambda: _cleared(state).replace(window=state.window.cleared()), lambda: state)
        state = backward(self.pipeline, self.loss_fn, state, differentiable=self.differentiable)
        state = self._updated(state)
        return self._finished(state, presented=True).replace(batch=FrozenMap())

    def fire(self, state: TrainState, stage: Stage, will_skip: Flag = False) -> tuple[TrainState, Flag]:  # noqa: FBT002
        """Run the fold of a stage, and make every number a tensor again."""
        outcome = self.pipeline.update(state, stage, will_skip)
        return tensored(outcome.state, _device(state)), outcome.proceed

    def _opened(self, state: TrainState, batch: Any) -> TrainState:
        """Return the state as a micro-batch finds it."""
        nothing = torch.full_like(state.loss, float("nan"))
        unknown = {name: torch.full_like(value, float("nan")) for name, value in state.metrics.items()}
        fresh = state.replace(
            loss=nothing,
            raw_loss=nothing,
            window=state.window.opened(torch.zeros_like(state.window.last)),  # pyright: ignore[reportArgumentType]
            metrics=FrozenMap(unknown),
            hyper=hyper_of(self.optimizers, state.opt),
            batch=batch,
        )
        return tensored(_without_verdicts(fresh), _device(state))

    def _updated(self, state: TrainState) -> TrainState:
        """Unscale, fold, step or not, settle the scaler: DO_OPTIMIZER_STEP and what follows it."""
        boundary = state.window.boundary
        state = select(boundary, lambda: _scaler.unscaled(state), lambda: state)
        empty = both(boundary, equal(state.window.entered, 0))
        state, proceed = self.fire(state, Stage.DO_OPTIMIZER_STEP, empty)
        state = stepped(self.pipeline, self.optimizers, state, both(proceed, boundary))
        if self.precision is not None:
            state = _scaler.settled(state, state.hooks[self.precision.name])
        ran = any_of(state.stepped)
        return self.fire(state, Stage.AFTER_OPTIMIZER_STEP, negate(ran))[0]

    def _finished(self, state: TrainState, *, presented: bool) -> TrainState:
        """Advance the clock and close the window; a skipped one is emptied."""
        self.pipeline.notice("end", state)
        boundary, ran = state.window.boundary, any_of(state.stepped)
        clock = state.clock.updated(boundary, state.stepped, ran, int(presented))
        state = state.replace(clock=clock)
        emptied = state.replace(window=state.window.emptied())
        closed = select(both(boundary, negate(ran)), lambda: self._discarded(state), lambda: emptied)
        return tensored(select(boundary, lambda: closed, lambda: state), _device(state))

    def _discarded(self, state: TrainState) -> TrainState:
        """Return the state with its open window thrown away."""
        slots = {each.name: each.reset(state.hooks[each.name]) for each in self.pipeline}
        fresh = _cleared(state).replace(window=state.window.emptied(), hooks=state.hooks | slots)
        return tensored(fresh, _device(state))

    def flush(self, state: TrainState) -> TrainState:
        """Close a partial window by policy, and end the epoch."""
        return self._kept_or_donated(state, self._flushed)

    def _flushed(self, state: TrainState) -> TrainState:
        """Return the state after the end of an epoch."""
        policy = getattr(self.accumulate, "partial", "carry")
        if policy != "carry" and self.accumulate is not None:
            is_open = state.hooks[self.accumulate.name]["position"] > 0
            act = self._discarded if policy == "drop" else self._stepped_on_part
            before = state
            state = select(is_open, lambda: act(before), lambda: before)
        self.pipeline.notice("epoch", state)
        return tensored(state.replace(clock=state.clock.next_epoch()), _device(state))

    def _stepped_on_part(self, state: TrainState) -> TrainState:
        """Return the state after a step on what an open window holds."""
        kept = {name: getattr(state, name) for name in ("loss", "raw_loss", "vetoes")}
        window = state.window.replace(boundary=True)
        self.pipeline.notice("flush", state)
        state = self._opened(state, FrozenMap()).replace(window=window, **kept)
        state = self._updated(tensored(state, _device(state)))
        return self._finished(state, presented=False).replace(batch=FrozenMap())


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _device(state: TrainState) -> torch.device:
    """Return where the numbers of a state live."""
    return state.rng.device


def _cleared(state: TrainState) -> TrainState:
    """Return the state with gradients of zero."""
    return state.replace(grads=_tree.map_leaves(torch.zeros_like, state.grads))


def _without_verdicts(state: TrainState) -> TrainState:
    """Return the state with nobody having vetoed and nothing having stepped."""
    off = torch.zeros((), dtype=torch.bool, device=state.rng.device)
    vetoes = {stage: dict.fromkeys(held, off) for stage, held in state.vetoes.items()}
    return state.replace(vetoes=FrozenMap(vetoes), stepped=FrozenMap(dict.fromkeys(state.stepped, off)))
