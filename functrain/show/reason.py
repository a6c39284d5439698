"""Why a micro-batch made no step, as one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functrain._stage import Stage
from functrain.show.event import Event
from functrain.show.outcome import outcome


def reason(batch: int, events: Sequence[Event]) -> str:
    """Return a sentence with numbers; of a limit that was exceeded, what was found and what was allowed.

    >>> reason(3, [Event(3, "finite", Stage.DO_OPTIMIZER_STEP, False, False, False, True, 0.5, {"grad_norm": 9.0})])
    "batch 3 made no step: 'finite' vetoed DO_OPTIMIZER_STEP (loss 0.5, grad_norm 9)"
    """
    if not events:
        return f"batch {batch} is not in the trace"
    numbers = f"({', '.join(_numbers(events))})"
    if by := _names(events, Stage.DO_BACKWARD):
        return f"batch {batch} was dropped: {by} vetoed DO_BACKWARD {numbers}{_beyond(events)}"
    stepping = [each for each in events if each.stage is Stage.DO_OPTIMIZER_STEP]
    if stepping and not bool(stepping[0].boundary):
        return f"batch {batch} waits in its window {numbers}"
    if stepping and bool(stepping[0].saw):
        return f"batch {batch} made no step: every micro-batch of its window was dropped {numbers}"
    if by := _names(stepping, Stage.DO_OPTIMIZER_STEP):
        return f"batch {batch} made no step: {by} vetoed DO_OPTIMIZER_STEP {numbers}{_beyond(stepping)}"
    return f"batch {batch} was not skipped {numbers}"


def _beyond(events: Sequence[Event]) -> str:
    """Return which limits were exceeded, of whom: of a hook that vetoed, and of one that clipped."""
    told = {
        each.hook: each.limit.sentence(each.hook)
        for each in events
        if each.limit is not None and (each.limit.is_exceeded or outcome([each]) in VETO)
    }
    return f", since {' and '.join(told.values())}" if told else ""


def _names(events: Sequence[Event], stage: Stage) -> str:
    """Return the hooks that vetoed a stage."""
    return " and ".join(repr(each.hook) for each in events if each.stage is stage and outcome([each]) in VETO)


VETO = ("vetoed", "dropped")


def _numbers(events: Sequence[Event]) -> list[str]:
    """Return the loss, and each metric as it was last."""
    last: dict[str, Any] = {"loss": events[-1].loss}
    for each in events:
        last |= each.metrics
    return [f"{name} {float(value):.4g}" for name, value in last.items()]
