"""L5: a hook changes what is its own, and what it says it changes."""

from __future__ import annotations

from typing import Any

from functrain import FrozenMap, Pipeline
from functrain._state import FIELDS
from functrain.testing.breach import require_same
from functrain.testing.forms import cloned, in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene


def check_frame(scene: Scene) -> None:
    """Check that all else is bitwise as before."""
    before, after = cloned(in_form(scene.state, scene.form)), scene.run().state
    allowed = {*scene.hook.writes, "loss", *(["vetoes"] if isinstance(scene.hook, Pipeline) else [])}
    slots = {each.name for each in scene.members()}
    for name in FIELDS:
        if name not in allowed:
            own = {"hooks": slots, "metrics": set(scene.hook.publishes)}.get(name, set[str]())
            old, new = (_without(getattr(state, name), own) for state in (before, after))
            require_same(old, new, "changed what it does not own, and declares in no writes", f"state.{name}")


def _without(field: Any, keys: set[str]) -> Any:
    return FrozenMap({key: value for key, value in field.items() if key not in keys}) if keys else field


FRAME = Law("L5 frame", "changes only slot, metrics, loss and what writes declares", check_frame)
