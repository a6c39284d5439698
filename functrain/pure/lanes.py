"""Many runs as the lanes of one: stacked, watched while they run, and apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from functrain import _tree
from functrain._clock import any_of
from functrain._limits import past_limits
from functrain._select import Flag, both, either, negate, select
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap


class Seen(NamedTuple):
    """What a micro-batch showed of a lane; 0-d in the lane, one value per lane outside.

    Attributes:
        loss: as the user computed it.
        counts: the lane was alive, and the micro-batch was not dropped.
        dead: the lane has died, in this micro-batch or before.
    """

    loss: Tensor
    counts: Tensor
    dead: Tensor


Watched: TypeAlias = Callable[[TrainState, Tensor, Any], tuple[TrainState, Seen]]


def watched(step: Callable[[TrainState, Any], TrainState]) -> Watched:
    """Return a step of one lane that also tells how the lane fares, and stands still once it is dead."""

    def lane_step(state: TrainState, dead: Tensor, batch: Any) -> tuple[TrainState, Seen]:
        after = step(state, batch)
        counts = negate(either(dead, any_of(after.vetoes.get(Stage.DO_BACKWARD, FrozenMap()))))
        lost = both(both(counts, any_of(after.stepped)), after.raw_loss.isnan())
        seen = Seen(after.raw_loss, cast("Tensor", counts), _died(after, either(dead, lost)))
        return select(dead, lambda: state, lambda: after), seen

    return lane_step


def flushed(flush: Callable[[TrainState], TrainState]) -> Callable[[TrainState, Tensor], tuple[TrainState, Tensor]]:
    """Return the flush of one lane; a dead lane stands still."""

    def lane_flush(state: TrainState, dead: Tensor) -> tuple[TrainState, Tensor]:
        after = flush(state)
        return select(dead, lambda: state, lambda: after), _died(after, dead)

    return lane_flush


def _died(state: TrainState, dead: Flag) -> Tensor:
    """Tell whether a lane is dead: it was before, its weights are not finite, or it skipped more than a hook allows."""
    for past in past_limits(state).values():
        dead = either(dead, past)
    finite = [leaf.isfinite().all() for leaf in _tree.leaves(state.params)]
    whole = torch.stack(finite).all() if finite else True
    return cast("Tensor", either(dead, negate(whole)))


def stacked(states: Sequence[TrainState]) -> TrainState:
    """Return states of one structure as the lanes of one state.

    >>> both = stacked([TrainState(rng=torch.tensor(seed)).replace(clock=(), window=()) for seed in range(2)])
    >>> both.rng
    tensor([0, 1])
    """

    def stack(*leaves: Tensor) -> Tensor:
        return torch.stack(leaves)

    return _tree.map_leaves(stack, states[0], *states[1:])


def joined(parts: Sequence[TrainState], count: int) -> TrainState:
    """Return the first lanes of several stacked states as one."""

    def join(*leaves: Tensor) -> Tensor:
        return torch.cat(leaves)[:count]

    return _tree.map_leaves(join, parts[0], *parts[1:])


def unstacked(state: TrainState, lane: int) -> TrainState:
    """Return one lane as a state of its own, which step, flush and check take; it shares no memory."""

    def pick(leaf: Tensor) -> Tensor:
        return leaf[lane].clone()

    return _tree.map_leaves(pick, state)


def chunked(states: Sequence[TrainState], max_lanes: int | None) -> list[TrainState]:
    """Return the lanes in stacks of one size, so that one graph serves all; the last is filled up with its last lane.

    Raises:
        ValueError: ``max_lanes`` below 1.
    """
    size = part_size(len(states), max_lanes)
    count = -(-len(states) // size)
    filled = [*states, *[states[-1]] * (count * size - len(states))]
    return [stacked(filled[first : first + size]) for first in range(0, len(filled), size)]


def part_size(count: int, max_lanes: int | None) -> int:
    """Return how many of some lanes run at once: all, or as many in each part if that is too many.

    Raises:
        ValueError: ``max_lanes`` below 1.

    >>> part_size(10, None), part_size(10, 4)
    (10, 4)
    """
    if max_lanes is not None and max_lanes < 1:
        msg = f"max_lanes must be at least 1, got {max_lanes}; None runs all lanes at once"
        raise ValueError(msg)
    parts = -(-count // (max_lanes or count))
    return -(-count // parts)
