"""How many skips in a row a hook allows, and whether it has had them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from functrain._select import Flag, both, either
from functrain._stage import Stage

if TYPE_CHECKING:
    from functrain._clock import Clock
    from functrain._hook import Hook
    from functrain._state import TrainState

Limits: TypeAlias = tuple[tuple[str, int], ...]
"""Names of hooks, each with its ``max_consecutive``."""


def limits_of(members: Iterable[Hook]) -> Limits:
    """Return the limits of those hooks that have one.

    >>> from functrain import EMA, SkipNonFinite
    >>> limits_of([EMA(), SkipNonFinite(max_consecutive=3)])
    (('finite', 3),)
    """
    found = ((each.name, getattr(each, "max_consecutive", None)) for each in members)
    return tuple((name, limit) for name, limit in found if limit is not None)


def past_limits(state: TrainState) -> dict[str, Flag]:
    """Tell by hook whether this boundary is a skip too many: past its limit, and the hook is a reason for it.

    Works on a state of either interpreter, and on stacked ones lane by lane; a Python number spares all that follows.

    >>> from functrain import TrainState
    >>> past_limits(TrainState(limits=(("finite", 3),)))
    {'finite': False}
    """
    return {name: _past(state, name, limit) for name, limit in state.limits}


def _past(state: TrainState, name: str, limit: int) -> Flag:
    many: Flag = state.clock.consecutive_skips > limit
    if many is False or state.window.boundary is False:
        return False
    vetoed = either(state.veto(Stage.DO_BACKWARD, name), state.veto(Stage.DO_OPTIMIZER_STEP, name))
    return both(both(many, state.window.boundary), vetoed)


def complaint(name: str, limit: int, clock: Clock) -> str:
    """Say which hook skipped how often since when."""
    skips, since, step = (int(number) for number in (clock.consecutive_skips, clock.skipping_since, clock.step))
    return (
        f"{name!r} skipped again: {skips} optimizer steps in a row were skipped since batch {since}, and "
        f"max_consecutive={limit}; the weights are those of step {step}. "
        "Look at state.vetoes and the losses since then; a larger max_consecutive only hides it"
    )
