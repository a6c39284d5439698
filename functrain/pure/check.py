"""Whether a pure run has skipped more than its hooks allow; a pure step cannot raise, so somebody has to ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from functrain import _tree
from functrain._errors import SkipLimitError
from functrain._limits import complaint, past_limits
from functrain._state import TrainState


def check(state: TrainState) -> None:
    """Raise where a hook skipped more steps in a row than its ``max_consecutive``; reads the device.

    The verdict is that of the latest micro-batch or flush: asked after each, it raises at the boundary at which
    :class:`functrain.Shell` raises.

    Args:
        state: of one run, or of several under ``vmap``, whose error then has one line per lane.

    Raises:
        SkipLimitError: names hook, count and first batch; of stacked states each lane, too.

    >>> check(TrainState(limits=(("finite", 3),)))
    """
    lines = list(_complaints(state))
    if lines:
        raise SkipLimitError("\n".join(lines))


def _complaints(state: TrainState) -> Iterator[str]:
    """Yield what is to be said, in the order of the lanes."""
    clock, limits = state.clock, dict(state.limits)
    found = {name: flag for name, flag in past_limits(state).items() if _any(flag)}
    for lane in _lanes(found):
        for name, flag in found.items():
            if bool(_of_lane(flag, lane)):
                told = complaint(name, limits[name], _of_lane(clock, lane))
                yield f"lane {', '.join(map(str, lane))}: {told}" if lane else told


def _any(flag: Any) -> bool:
    return bool(flag.any() if isinstance(flag, Tensor) else flag)


def _lanes(found: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return the lanes that somebody complains about; of a state that is not stacked the empty index."""
    places = [place for flag in found.values() for place in _places(flag)]
    return sorted({tuple(place) for place in places})


def _places(flag: Any) -> list[Any]:
    """Return where a flag is set."""
    found: Any = flag if isinstance(flag, Tensor) else torch.tensor(flag)
    return found.nonzero().tolist()


def _of_lane(tree: Any, lane: tuple[int, ...]) -> Any:
    """Return one lane of a tree; Python numbers are the same in all."""

    def pick(leaf: Any) -> Any:
        return leaf[lane] if isinstance(leaf, Tensor) else leaf

    return _tree.map_leaves(pick, tree)
