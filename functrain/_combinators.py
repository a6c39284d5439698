"""Hooks made of hooks: when, every, on, named, prioritized, observe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, SkipValidation

from functrain._clock import any_of
from functrain._fold import Pipeline, as_hook, fold
from functrain._function_hook import FunctionHook
from functrain._hook import Hook, Outcome
from functrain._restriction import Chooser, Selector, compiled, merged, restricted
from functrain._select import Flag, both, is_multiple, negate, select
from functrain._stage import Stage
from functrain._state import TrainState

CONTRACT = ("priority", "name", "stages", "writes", "publishes", "reads", "exclusive", "rank_local")


class Wrapper(Hook):
    """A hook around another one, whose name, slot and claims it takes over."""

    inner: Annotated[Hook, SkipValidation]

    @property
    def may_drop(self) -> bool:
        """Whether the inner hook may."""
        return self.inner.may_drop

    @property
    def keeps_finite(self) -> bool:
        """Whether the inner hook does."""
        return self.inner.keeps_finite

    @property
    def max_consecutive(self) -> int | None:
        """The skip limit of the inner hook, if it has one."""
        return getattr(self.inner, "max_consecutive", None)

    def __repr__(self) -> str:
        """Show the wrapper as the call that makes it."""
        own = (getattr(self, name) for name in type(self).model_fields.keys() - Wrapper.model_fields.keys())
        words = [*(getattr(value, "__qualname__", None) or repr(value) for value in own), repr(self.inner)]
        return f"{type(self).__name__.lower()}({', '.join(words)})"

    def init(self, state: TrainState) -> Any:
        """Build the inner hook's slot."""
        return self.inner.init(state)

    def reset(self, slot: Any) -> Any:
        """Reset the inner hook's slot."""
        return self.inner.reset(slot)


def innermost(hook: Hook | None) -> Hook | None:
    """Return the hook inside any number of wrappers."""
    while isinstance(hook, Wrapper):
        hook = hook.inner
    return hook


def _contract(inner: Hook) -> dict[str, Any]:
    """Return what a wrapper takes over."""
    return {name: getattr(inner, name) for name in CONTRACT}


def _each(hook: Any, wrap: Callable[[Hook], Hook]) -> Any:
    """Wrap a hook, or every member of a pipeline: a pipeline has no slot that a wrapper could take over."""
    return fold(*(wrap(each) for each in hook)) if isinstance(hook, Pipeline) else wrap(as_hook(hook))


class When(Wrapper):
    """Made by :func:`when`."""

    predicate: Callable[[TrainState], Flag]

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Run the inner hook where the predicate holds."""
        return _where(self.predicate(state), self.inner, state, stage, will_skip)


def _where(pred: Flag, inner: Hook, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
    """Select between an inner hook and the identity; a tensor runs both, so nothing may be donated then."""
    if isinstance(pred, bool):
        return Outcome(*inner.update(state, stage, will_skip)) if pred else Outcome(state, True, state.loss)
    kept = state.replace(donated=False)

    def run() -> Outcome:
        after, proceed, loss = inner.update(kept, stage, will_skip)
        return Outcome(after, proceed, state.loss if loss is None else loss)

    after, proceed, loss = select(pred, run, lambda: Outcome(kept, True, state.loss))
    return Outcome(after.replace(donated=state.donated), proceed, loss)


def when(predicate: Callable[[TrainState], Flag], hook: Any) -> Any:
    """Run a hook only where ``predicate(state)`` holds; elsewhere it is the identity.

    Args:
        predicate: gives a bool, or a 0-d bool tensor, in which case both branches are computed.
        hook: a hook, a function, or a pipeline, whose members are wrapped one by one.

    >>> from functrain import ClipNorm
    >>> when(lambda state: state.clock.step >= 100, ClipNorm(max_norm=1.0)).name
    'clip'
    """
    return _each(hook, lambda inner: When(inner=inner, predicate=predicate, **_contract(inner)))


class Every(Wrapper):
    """Made by :func:`every`."""

    n: Annotated[int, Field(ge=1)]

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Run the inner hook on the edge of the step count."""
        return _where(self._due(state, stage, will_skip), self.inner, state, stage, will_skip)

    def _due(self, state: TrainState, stage: Stage, will_skip: Flag) -> Flag:
        """Tell whether the update under way is, or would be, the n-th."""
        if stage not in AROUND_THE_STEP:
            return both(any_of(state.stepped), is_multiple(state.clock.step, self.n))
        due = both(state.window.boundary, is_multiple(state.clock.step + 1, self.n))
        return both(due, negate(will_skip)) if stage is Stage.AFTER_OPTIMIZER_STEP else due


AROUND_THE_STEP = frozenset(
    {
        Stage.BEFORE_BATCH,
        Stage.BEFORE_FORWARD,
        Stage.AFTER_FORWARD,
        Stage.BEFORE_LOSS,
        Stage.AFTER_LOSS,
        Stage.BEFORE_BACKWARD,
        Stage.DO_BACKWARD,
        Stage.AFTER_BACKWARD,
        Stage.BEFORE_OPTIMIZER_STEP,
        Stage.DO_OPTIMIZER_STEP,
        Stage.AFTER_OPTIMIZER_STEP,
    }
)
"""The stages at which the clock does not count the update under way yet."""


def every(n: int, hook: Any) -> Any:
    """Run a hook once per ``n`` executed steps: at the update that brings the step count to a multiple of ``n``.

    Micro-batches that wait and steps that are skipped do not count. Not to be confused with ``Accumulate(every=n)``,
    which counts micro-batches.

    Raises:
        pydantic.ValidationError: ``n`` below 1 or not an int.

    >>> from functrain import EMA
    >>> every(10, EMA()).n
    10
    """
    return _each(hook, lambda inner: Every(inner=inner, n=n, **_contract(inner)))


class On(Wrapper):
    """Made by :func:`on`."""

    selector: Selector

    @cached_property
    def chooser(self) -> Chooser:
        """The selector, compiled at SETUP: a pattern cannot be translated while ``torch.compile`` looks on."""
        return compiled(self.selector)

    def init(self, state: TrainState) -> Any:
        """Build the inner hook's slot from the selected parameters."""
        return self.inner.init(restricted(state, self.chooser))

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Run the inner hook on the selected parameters and gradients, and put back what it changed."""
        part = restricted(state, self.chooser)
        after, proceed, loss = self.inner.update(part, stage, will_skip)
        # A norm of some gradients is not the norm: what was measured on a part stays with the part.
        return Outcome(merged(state, part, after).replace(metrics=state.metrics), proceed, loss)


def on(selector: Selector, hook: Any) -> Any:
    """Let a hook see only some parameters and their gradients.

    Args:
        selector: a pattern such as ``"head.*"`` for ``fnmatch``, or ``(model_key, name) -> bool``.
        hook: a hook, a function, or a pipeline, whose members are wrapped one by one.

    >>> from functrain import ClipNorm
    >>> on("*.bias", ClipNorm(max_norm=1.0)).name
    'clip'
    """
    nothing: dict[str, Any] = {"publishes": frozenset()}
    return _each(hook, lambda inner: On(inner=inner, selector=selector, **(_contract(inner) | nothing)))


def named(name: str, hook: Any) -> Any:
    """Return the same hook under another name, and so with a slot of its own.

    Raises:
        TypeError: a pipeline, whose members have names of their own.
        pydantic.ValidationError: a name that is no identifier.

    >>> from functrain import EMA
    >>> named("slow", EMA(decay=0.9999)).name
    'slow'
    """
    if isinstance(hook, Pipeline):
        msg = f"cannot name a pipeline; name its members: {[each.name for each in hook]}"
        raise TypeError(msg)
    inner = FunctionHook(function=hook, name=name) if not isinstance(hook, Hook) and callable(hook) else as_hook(hook)
    return _changed(inner, name=name)


def prioritized(priority: int, hook: Any) -> Any:
    """Return the same hook with another place in the order; lower runs first.

    >>> from functrain import EMA
    >>> prioritized(60, EMA()).priority
    60
    """
    return _each(hook, lambda inner: _changed(inner, priority=priority))


def _changed(hook: Hook, **changes: Any) -> Hook:
    """Return a copy with validated changes, in a wrapper also of what it wraps: the slot is found by the inner name."""
    Hook(**changes)
    if isinstance(hook, Wrapper):
        changes["inner"] = _changed(hook.inner, **changes)
    return hook.model_copy(update=changes)


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
