"""Hooks that run an inner hook sometimes, or on a part of the state: when, every, on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from functrain._clock import any_of
from functrain._hook import Outcome
from functrain._restriction import Chooser, Selector, compiled, merged, restricted
from functrain._select import Flag, both, is_multiple, negate
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._wrapper import Wrapper, contract, each_member, run_where


class When(Wrapper):
    """Made by :func:`when`."""

    predicate: Callable[[TrainState], Flag]

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Run the inner hook where the predicate holds."""
        return run_where(self.predicate(state), self.inner, state, stage, will_skip)


def when(predicate: Callable[[TrainState], Flag], hook: Any) -> Any:
    """Run a hook only where ``predicate(state)`` holds; elsewhere it is the identity.

    Args:
        predicate: gives a bool, or a 0-d bool tensor, in which case both branches are computed.
        hook: a hook, a function, or a pipeline, whose members are wrapped one by one.

    >>> from functrain import ClipNorm
    >>> when(lambda state: state.clock.step >= 100, ClipNorm(max_norm=1.0)).name
    'clip'
    """
    return each_member(hook, lambda inner: When(inner=inner, predicate=predicate, **contract(inner)))


class Every(Wrapper):
    """Made by :func:`every`."""

    n: Annotated[int, Field(ge=1)]

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Run the inner hook on the edge of the step count."""
        return run_where(self._due(state, stage, will_skip), self.inner, state, stage, will_skip)

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
    return each_member(hook, lambda inner: Every(inner=inner, n=n, **contract(inner)))


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
    return each_member(hook, lambda inner: On(inner=inner, selector=selector, **(contract(inner) | nothing)))
