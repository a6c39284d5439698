"""What all hooks around another hook share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import SkipValidation

from functrain._fold import Pipeline, fold
from functrain._function_hook import as_hook
from functrain._hook import Hook, Outcome
from functrain._select import Flag, select
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

    def may_differ(self, stage: Stage) -> bool:
        """Tell whether that of the inner hook may."""
        return self.rank_local and self.inner.may_differ(stage)

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


def contract(inner: Hook) -> dict[str, Any]:
    """Return what a wrapper takes over."""
    return {name: getattr(inner, name) for name in CONTRACT}


def each_member(hook: Any, wrap: Callable[[Hook], Hook]) -> Any:
    """Wrap a hook, or every member of a pipeline: a pipeline has no slot that a wrapper could take over."""
    return fold(*map(wrap, hook.joined())) if isinstance(hook, Pipeline) else wrap(as_hook(hook))


def run_where(pred: Flag, inner: Hook, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
    """Select between an inner hook and the identity; a tensor runs both, so nothing may be donated then."""
    if isinstance(pred, bool):
        return Outcome(*inner.update(state, stage, will_skip)) if pred else Outcome(state, True, state.loss)
    kept = state.replace(donated=False)

    def run() -> Outcome:
        after, proceed, loss = inner.update(kept, stage, will_skip)
        return Outcome(after, proceed, state.loss if loss is None else loss)

    after, proceed, loss = select(pred, run, lambda: Outcome(kept, True, state.loss))
    return Outcome(after.replace(donated=state.donated), proceed, loss)
