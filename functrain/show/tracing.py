"""A pipeline that keeps a record of its calls and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
from pydantic import SkipValidation

from functrain._fold import Occasion, Pipeline, fold
from functrain._hook import Hook
from functrain._select import Flag
from functrain._stage import Stage
from functrain._state import TrainState
from functrain.show.kept import inside_vmap
from functrain.show.timeline import Trace


class TracedPipeline(Pipeline):
    """Made by :func:`trace`: the same members in the same order.

    Attributes:
        trace: what they did.

    >>> from functrain import ClipNorm, show
    >>> traced = show.trace(ClipNorm(max_norm=1.0))
    >>> [member.name for member in traced], len(traced.trace.events)
    (['clip'], 0)
    """

    trace: Annotated[Trace, SkipValidation]

    def call(self, member: Hook, state: TrainState, stage: Stage, will_skip: Flag) -> tuple[TrainState, Flag]:
        """Call a member and note what it did; a compiled step notes nothing."""
        after, proceed = super().call(member, state, stage, will_skip)
        if torch.compiler.is_compiling():
            return after, proceed
        if inside_vmap():  # a lane has no values that could be kept
            self.trace.in_lanes += 1
        else:
            self.trace.record(member, stage, will_skip, (state, after), proceed)
        return after, proceed

    def notice(self, occasion: Occasion, state: TrainState, take: Callable[[], Any] | None = None) -> None:
        """Open or close a column of the trace; a compiled step notes nothing."""
        if not torch.compiler.is_compiling() and not inside_vmap():
            self.trace.notice(occasion, state, take, self.member("accumulate"))

    def joined(self) -> tuple[Hook, ...]:
        """Refuse to become part of another pipeline, which would not tell the trace.

        Raises:
            ValueError: says what to write.
        """
        msg = "a traced pipeline cannot be part of another one, which would record nothing: trace the whole one, "
        raise ValueError(msg + "show.trace(fold(...)), after composing and wrapping")

    def around(self, wrap: Callable[[Hook], Hook]) -> Pipeline:
        """Return the pipeline with every member inside a wrapper; it is traced, too."""
        return _traced(super().around(wrap), self.trace)


def trace(hooks: Any, *, limit: int = 100_000, budget: int | None = None) -> TracedPipeline:
    """Return the same pipeline, which records every call in its ``trace``; results stay bitwise the same.

    With a budget the states of the last micro-batches are kept, too: ``trace[17].state`` is the state as batch 17
    began, and :func:`replay` goes on from there through other hooks. A shell is traced in every mode, strict included.
    Of a compiled step, and of the lanes of ``vmap``, nothing is recorded.

    Args:
        hooks: a hook, a pipeline, or a list of both.
        limit: how many calls to keep, at least 1.
        budget: bytes of snapshots to keep, on the device of the run; by default none.

    Raises:
        TypeError, ValueError: what cannot be composed, as in ``fold``; a limit that is no number of calls; a budget
            that is none of bytes. The first micro-batch raises ValueError if one snapshot is larger than the budget.

    >>> from functrain import Accumulate, ClipNorm, Shell, show
    >>> traced = show.trace([Accumulate(every=2), ClipNorm(max_norm=1.0)], budget=10_000_000)
    >>> model = torch.nn.Linear(1, 1)
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), traced)
    >>> for _ in range(4):
    ...     with shell.batch():
    ...         shell.update(model(torch.ones(1, 1)).square().mean())
    >>> print(traced.trace)
    batch       0  1  2  3
    ----------  -  -  -  -
    accumulate  w  x  w  x
    clip        s  x  s  x
    >>> traced.trace[2].state.clock.step
    1
    """
    folded = fold(*hooks) if isinstance(hooks, list | tuple) else fold(hooks)
    return _traced(folded, Trace(tuple(each.name for each in folded), _checked(limit), budget or 0, folded))


def _checked(limit: Any) -> int:
    """Return a limit of calls.

    >>> _checked(1)
    1
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        msg = f"limit must be a number of calls; got {limit!r}"
        raise TypeError(msg)
    if limit < 1:
        msg = f"limit must be at least 1 call, got {limit}"
        raise ValueError(msg)
    return limit


def _traced(folded: Pipeline, lanes: Trace) -> TracedPipeline:
    """Return a pipeline of the same members that tells a trace."""
    own = {name: getattr(folded, name) for name in Pipeline.model_fields}
    return TracedPipeline(**own, trace=lanes)
