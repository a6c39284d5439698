"""A witness without what does not matter."""

from __future__ import annotations

from dataclasses import replace

from functrain import TrainState
from functrain._state import FIELDS
from functrain.testing.violation import LawViolation

COSTLY = 4
"""Laws of a larger cost are not checked again for every field."""


def simpler(violation: LawViolation) -> LawViolation:
    """Return the same violation on a state from which every field is gone that does not matter.

    Hypothesis has made the numbers small; here whole fields go back to their defaults while the law stays broken at
    the same place.
    """
    if violation.law.cost > COSTLY:
        return violation
    for change in _changes():
        violation = _again(violation, change)
    return violation


def _changes() -> list[tuple[str, ...]]:
    """Return what may go: each field, and in the end the owners with all that is keyed by optimizer."""
    empty = [name for name in FIELDS if name not in ("params", "hooks")]
    return [("owners", "stepped", "scaler", "hyper", "clock"), *((name,) for name in (*empty, "world", "params"))]


def _again(violation: LawViolation, names: tuple[str, ...]) -> LawViolation:
    """Return the violation without some fields if it still is one, else as it was."""
    scene, default = violation.scene, TrainState()
    state = scene.state.replace(**{name: getattr(default, name) for name in names})
    try:
        violation.law.check(replace(scene, state=state))
    except LawViolation as found:
        if (found.what, found.path) == (violation.what, violation.path):
            found.blob = violation.blob
            return found
    except Exception:  # noqa: BLE001 - a state without this field is no state of this hook: it matters
        return violation
    return violation
