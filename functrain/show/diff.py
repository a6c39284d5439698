"""Two states, and only what differs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from functrain.show.branches import ends
from functrain.show.leaf import leaf_note
from functrain.show.node import Grid
from functrain.show.view import View, safely


def diff(a: Any, b: Any, *, stats: bool = False, root: str = "state") -> View:
    """Show what differs between two states; never raises, and asks no device for a value.

    Without ``stats`` two tensors are the same where they are one object, and what was computed anew counts as changed.
    A shell writes in place, so of it compare snapshots, with ``stats=True``.

    Args:
        a: the one.
        b: the other.
        stats: compare contents, bitwise, and show norms; waits for the device.
        root: what the paths begin with.

    >>> from functrain import TrainState, show
    >>> state = TrainState()
    >>> show.diff(state, state.replace(clock=state.clock.replace(step=3)))
    path              before  after
    ----------------  ------  -----
    state.clock.step  0       3
    """
    return safely(lambda: _grid(ends(a, root), ends(b, root), stats=stats))


def _grid(ours: dict[str, Any], theirs: dict[str, Any], *, stats: bool) -> Grid:
    """Return a row for each path whose leaf differs."""
    pairs = [(path, ours.get(path, MISSING), theirs.get(path, MISSING)) for path in dict.fromkeys((*ours, *theirs))]
    rows = [(path, *_notes(one, two, stats=stats)) for path, one, two in pairs if not _same(one, two, stats=stats)]
    return Grid(("path", "before", "after"), tuple(rows), notes=() if rows else ("nothing differs",))


class _Missing:
    """What stands where only the other state has a leaf."""


MISSING = _Missing()


def _notes(one: Any, two: Any, *, stats: bool) -> tuple[str, str]:
    """Describe both; tensors of one kind are told apart by a word."""
    before, after = ("missing" if leaf is MISSING else leaf_note(leaf, stats=stats) for leaf in (one, two))
    return before, after if before != after else "changed"


def _same(one: Any, two: Any, *, stats: bool) -> bool:
    """Compare two leaves; without ``stats`` no tensor's content."""
    if one is two:
        return True
    if isinstance(one, Tensor) or isinstance(two, Tensor):
        return stats and isinstance(one, Tensor) and isinstance(two, Tensor) and _same_contents(one, two)
    return type(one) is type(two) and _equal(one, two)


def _equal(one: Any, two: Any) -> bool:
    """Compare two values that are no tensors, NaN equal to NaN; what cannot be compared differs."""
    try:
        return bool(one == two or (one != one and two != two))  # noqa: PLR0124 - NaN
    except Exception:  # noqa: BLE001 - a batch may hold anything
        return False


def _same_contents(one: Tensor, two: Tensor) -> bool:
    """Compare two tensors by value, NaN equal to NaN; what cannot be read differs."""
    from functrain._strict import same

    try:
        return same(one.detach(), two.detach())
    except (RuntimeError, NotImplementedError):
        return False
