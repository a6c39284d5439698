"""What a checker raises: a law is broken, or it could not be checked because the hook failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from functrain._hook import Outcome
from functrain._tree import paths
from functrain.testing.forms import bits

MISSING = "missing"


class Breach(AssertionError):  # noqa: N818 - what it is; the error that users see is LawViolation
    """A law does not hold: what is wrong, where, and both values.

    >>> print(Breach("the input changed", "state.loss", 1.0, 2.0))
    the input changed at state.loss: expected 1.0, found 2.0
    """

    def __init__(self, what: str, path: str = "", expected: Any = MISSING, found: Any = MISSING) -> None:
        """Keep the parts."""
        super().__init__(what, path, expected, found)
        self.what, self.path, self.expected, self.found = what, path, expected, found

    def __str__(self) -> str:
        """Say it in one line."""
        where = f" at {self.path}" if self.path else ""
        return f"{self.what}{where}: expected {self.expected}, found {self.found}"


class HookFailed(RuntimeError):  # noqa: N818 - as Breach
    """The hook raised, or returned no outcome: a matter of the contract, and no other law can be checked here.

    >>> from functrain import Stage, TrainState, hook
    >>> from functrain.testing import Scene
    >>> fails = hook(lambda state, stage, will_skip: 1 / 0, name="fails")
    >>> Scene(fails, TrainState(), Stage.BEFORE_BATCH, will_skip=False).run()
    Traceback (most recent call last):
    functrain.testing.breach.HookFailed: ...
    """


def differing(expected: Any, found: Any, root: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield path and both values of every leaf that is not bitwise the same in both trees."""
    left, right = paths(expected, root), paths(found, root)
    for path in dict.fromkeys((*left, *right)):
        if path not in left or path not in right or bits(left[path]) != bits(right[path]):
            yield path, left.get(path, MISSING), right.get(path, MISSING)


def require_same(expected: Any, found: Any, what: str, root: str = "state") -> None:
    """Raise at the first path at which two trees differ.

    Raises:
        Breach: with the path and both values.

    >>> require_same({"a": 1}, {"a": 1}, "it changed")
    """
    for difference in differing(expected, found, root):
        raise Breach(what, *difference)


def require_same_outcome(expected: Outcome, found: Outcome, what: str) -> None:
    """Raise where two outcomes differ: in the state, the verdict or the loss."""
    for name in Outcome._fields:
        require_same(getattr(expected, name), getattr(found, name), what, name)


def require_equal(expected: Any, found: Any, what: str, path: str = "") -> None:
    """Raise unless two plain values are equal."""
    if expected != found:
        raise Breach(what, path, expected, found)
