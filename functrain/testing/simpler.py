"""A witness without what does not matter."""

from __future__ import annotations

from dataclasses import replace

from functrain import TrainState
from functrain._state import FIELDS
from functrain.testing.scene import Scene
from functrain.testing.violation import LawViolation

COSTLY = 4
"""Laws of a larger cost are not checked again for every field."""


def simpler(violation: LawViolation) -> LawViolation:
    """Return the same violation on a state from which every field is gone that does not matter.

    Hypothesis has made the numbers small; here whole fields, and the schedule, go back to their defaults while the law
    stays broken at the same place.
    """
    if violation.law.cost > COSTLY:
        return violation
    violation = _again(violation, replace(violation.scene, schedule=()))
    for names in _changes():
        violation = _again(violation, without(violation.scene, names))
    return violation


def _changes() -> list[tuple[str, ...]]:
    """Return what may go: each field, and in the end the owners with all that is keyed by optimizer."""
    empty = [name for name in FIELDS if name not in ("params", "hooks")]
    return [("owners", "stepped", "scaler", "hyper", "clock"), *((name,) for name in (*empty, "world", "params"))]


def without(scene: Scene, names: tuple[str, ...]) -> Scene:
    """Return a scene in whose state some fields are as by default."""
    default = TrainState()
    return replace(scene, state=scene.state.replace(**{name: getattr(default, name) for name in names}))


def _again(violation: LawViolation, scene: Scene) -> LawViolation:
    """Return the violation on a simpler scene if it still is one, else as it was."""
    try:
        violation.law.check(scene)
    except LawViolation as found:
        if (found.what, found.path) == (violation.what, violation.path):
            found.blob = violation.blob
            return found
    except Exception:  # noqa: BLE001 - a state without this field is no state of this hook: it matters
        return violation
    return violation
