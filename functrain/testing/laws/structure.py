"""L3: the structure of the state stays, for structure decides what recompiles and what a checkpoint fits."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from functrain._state import FIELDS, STATIC
from functrain._tree import paths, structure
from functrain.testing.breach import MISSING, Breach, require_equal
from functrain.testing.forms import in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene


def check_structure(scene: Scene) -> None:
    """Check structure, shapes, dtypes and devices; numbers in Python's form keep their kind."""
    before = in_form(scene.state, scene.form)
    after = scene.run().state
    for name in STATIC:
        require_equal(getattr(before, name), getattr(after, name), "a static field changed", f"state.{name}")
    old, now = paths(before), paths(after)
    for path in dict.fromkeys((*old, *now)):
        was, became = _kind(old.get(path, MISSING)), _kind(now.get(path, MISSING))
        if was != became:
            raise Breach("the structure changed", path, was, became)
    for name in FIELDS:
        was, became = structure(getattr(before, name)), structure(getattr(after, name))
        if was != became:
            raise Breach("order or nesting changed", f"state.{name}", was, became)


def _kind(leaf: Any) -> str:
    """Return what must stay; a Python number may become the 0-d tensor that stands for it."""
    as_tensor = in_form(leaf, "tensor")
    if isinstance(as_tensor, Tensor):
        return f"{tuple(as_tensor.shape)} {as_tensor.dtype} on {as_tensor.device}"
    return MISSING if leaf is MISSING else type(leaf).__name__


STRUCTURE = Law("L3 structure", "structure, shapes, dtypes, devices and static fields stay", check_structure)
