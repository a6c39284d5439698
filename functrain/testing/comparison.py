"""What a failed ``assert one == other`` shows of states: the paths that differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from functrain import FrozenMap, TrainState
from functrain._state import STATIC
from functrain._tree import Record
from functrain.testing.breach import MISSING, differing
from functrain.testing.source import value_source

SHOWN = 20
"""How many paths are shown at most."""


def explained(left: Any, right: Any) -> list[str] | None:
    """Return the lines that say where two states, or two mappings of a state, differ; None of anything else.

    >>> one = TrainState()
    >>> for line in explained(one, one.replace(clock=one.clock.replace(step=1))):
    ...     print(line)
    TrainState == TrainState: 1 place differs
    left.clock.step: 0 != 1
    """
    if not (_is_tree(left) and _is_tree(right)):
        return None
    found = [*differing(left, right, ""), *_static(left, right)]
    lines = [f"left{path}: {_text(one)} != {_text(other)}" for path, one, other in found]
    heading = f"{type(left).__name__} == {type(right).__name__}: {_count(len(lines))}"
    if not lines and isinstance(left, Record):
        heading += f"; a {type(left).__name__} equals only itself"
    return [heading, *lines[:SHOWN], *([f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]


def _is_tree(value: Any) -> bool:
    return isinstance(value, Record | FrozenMap)


def _static(left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the static fields that differ: they are no leaves."""
    if isinstance(left, TrainState) and isinstance(right, TrainState):
        pairs = ((f".{name}", getattr(left, name), getattr(right, name)) for name in STATIC)
        yield from (each for each in pairs if each[1] != each[2])


def _count(number: int) -> str:
    return "1 place differs" if number == 1 else f"{number or 'no'} places differ"


def _text(value: object) -> str:
    return MISSING if value is MISSING else value_source(value)
