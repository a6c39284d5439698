"""One call of one hook, as a trace keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from functrain._select import Flag, Number
from functrain._stage import Stage
from functrain.show.limit import Limit


class Event(NamedTuple):
    """What was seen of a call; tensors stay tensors until somebody reads the trace.

    Attributes:
        batch: the micro-batch, by the clock.
        hook: the name of the hook.
        stage: where it was called.
        saw: the ``will_skip`` that it got.
        proceed: what it returned; read at gated stages only.
        changed_loss: whether it returned another loss.
        boundary: whether the micro-batch completes a window.
        loss: what the user computed.
        metrics: those that were there after the call.
        limit: what the hook judged by, and its limit, where it has one.
        column: place of the micro-batch or flush among all that were recorded.

    >>> Event(0, "clip", Stage.DO_OPTIMIZER_STEP, False, True, False, True, 0.5, {}).hook
    'clip'
    """

    batch: Number
    hook: str
    stage: Stage
    saw: Flag
    proceed: Flag
    changed_loss: bool
    boundary: Flag
    loss: Tensor | float
    metrics: Mapping[str, Any]
    limit: Limit | None = None
    column: int = 0
