"""What the calls of a hook in one micro-batch come to."""

from __future__ import annotations

from collections.abc import Sequence

from functrain._stage import GATED_STAGES, Stage
from functrain.show.event import Event

MARKS = {"ran": "x", "saw will_skip": "s", "waited": "w", "changed the loss": "l", "vetoed": "v", "dropped": "d"}
"""How a trace writes each outcome; a dot where a hook was not called."""


def outcome(events: Sequence[Event]) -> str:
    """Return the most telling of: dropped, vetoed, changed the loss, waited, saw will_skip, ran.

    A veto in mid-window is no skip: the hook waited.

    >>> outcome([Event(0, "finite", Stage.DO_BACKWARD, False, False, False, True, 0.5, {})])
    'dropped'
    """
    vetoes = [each for each in events if each.stage in GATED_STAGES and not bool(each.proceed)]
    stepping = [each for each in vetoes if each.stage is Stage.DO_OPTIMIZER_STEP]
    if any(each.stage is Stage.DO_BACKWARD for each in vetoes):
        return "dropped"
    if any(bool(each.boundary) for each in stepping):
        return "vetoed"
    if any(each.changed_loss for each in events):
        return "changed the loss"
    if stepping:
        return "waited"
    return "saw will_skip" if any(bool(each.saw) for each in events if each.stage in GATED_STAGES) else "ran"
