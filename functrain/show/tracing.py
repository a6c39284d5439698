"""A pipeline that keeps a record of its calls and changes nothing."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import SkipValidation

from functrain._fold import Pipeline, fold
from functrain._hook import Hook
from functrain._select import Flag
from functrain._stage import Stage
from functrain._state import TrainState
from functrain.show.event import Event
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
        if not torch.compiler.is_compiling():
            self.trace.events.append(_event(member, stage, will_skip, (state, after), proceed))
        return after, proceed


def _event(member: Hook, stage: Stage, will_skip: Flag, states: tuple[TrainState, TrainState], proceed: Flag) -> Event:
    """Return what is kept of a call: references, and a loss without its graph."""
    before, after = states
    changed = stage is Stage.DO_BACKWARD and after.loss is not before.loss
    loss, metrics = after.raw_loss.detach(), after.metrics
    batch, boundary = after.clock.batch, after.window.boundary
    return Event(batch, member.name, stage, will_skip, proceed, changed, boundary, loss, metrics)


def trace(hooks: Any, *, limit: int = 100_000) -> TracedPipeline:
    """Return the same pipeline, which records every call in its ``trace``; results stay bitwise the same.

    Of a strict shell nothing is recorded, since it puts other hooks around the members.

    Args:
        hooks: a hook, a pipeline, or a list of both.
        limit: how many calls to keep.

    Raises:
        TypeError, ValueError: what cannot be composed, as in ``fold``.

    >>> from functrain import Accumulate, ClipNorm, Shell, show
    >>> traced, model = show.trace([Accumulate(every=2), ClipNorm(max_norm=1.0)]), torch.nn.Linear(1, 1)
    >>> shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), traced)
    >>> for _ in range(4):
    ...     with shell.batch():
    ...         shell.update(model(torch.ones(1, 1)).square().mean())
    >>> print(traced.trace)
    batch       0  1  2  3
    ----------  -  -  -  -
    accumulate  w  x  w  x
    clip        s  x  s  x
    """
    folded = fold(*hooks) if isinstance(hooks, list | tuple) else fold(hooks)
    lanes = Trace(tuple(each.name for each in folded), limit)
    own = {name: getattr(folded, name) for name in Pipeline.model_fields}
    return TracedPipeline(**own, trace=lanes)
