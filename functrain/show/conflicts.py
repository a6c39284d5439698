"""Orders of hooks that compose and still need a look, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from functrain._hook import Hook
from functrain._stage import Stage


def conflicts(members: Sequence[Hook]) -> Iterator[str]:
    """Yield a sentence for each pair whose order decides something that nobody has said.

    >>> from functrain import ClipNorm, ClipValue
    >>> print(*conflicts(tuple(ClipNorm(max_norm=1.0) + ClipValue(clip_value=0.1))))
    'clip' and 'clip_value' both write grads at DO_OPTIMIZER_STEP with priority 30: the order ... decides
    """
    for first, second in combinations(members, 2):
        shared = _in_order(first.stages & second.stages)
        if shared and first.priority == second.priority:
            yield from _same_priority(first, second, shared)
        if shared and second.exclusive == "accumulate" and "grads" in first.writes:
            yield _before_the_mean(first, second)


def _in_order(stages: Iterable[Stage]) -> list[Stage]:
    return [stage for stage in Stage if stage in set(stages)]


def _same_priority(first: Hook, second: Hook, shared: list[Stage]) -> Iterator[str]:
    """Say that two hooks write the same and nothing but the code's order tells which comes first."""
    if both := sorted(first.writes & second.writes):
        at = " and ".join(stage.name for stage in shared)
        yield (
            f"{first.name!r} and {second.name!r} both write {', '.join(both)} at {at} with priority {first.priority}: "
            "the order in which they were given decides"
        )


def _before_the_mean(writer: Hook, accumulate: Hook) -> str:
    return (
        f"{writer.name!r} (priority {writer.priority}) writes grads before {accumulate.name!r} (priority "
        f"{accumulate.priority}) makes the mean of the window: it sees the gradients uncorrected"
    )
