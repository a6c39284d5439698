"""Hooks under watch: structure, purity and frame are checked at every call."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import SkipValidation
from torch import Tensor

from functrain import _tree
from functrain._errors import PurityError, StructureError
from functrain._fold import Pipeline
from functrain._hook import Hook, Outcome
from functrain._select import Flag
from functrain._stage import Stage
from functrain._state import FIELDS, STATIC, TrainState, nothing
from functrain._tree import FrozenMap
from functrain._wrapper import Wrapper, contract


class Watched(Wrapper):
    """A hook whose every call is checked; its results are the hook's own."""

    inner: Annotated[Hook, SkipValidation]

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Call the hook between a look at its input and a look at its output."""
        before = contents(state)
        outcome = self.inner.update(state, stage, will_skip)
        after = returned_state(outcome)
        if after is not None:
            check_purity(self.inner, stage, before, state)
            check_structure(self.inner, stage, state, after)
            check_frame(self.inner, stage, state, after)
        return outcome


def returned_state(outcome: Any) -> TrainState | None:
    """Return the state in what a hook returned, if there is one; what is wrong otherwise, the fold says."""
    first: Any = next(iter(outcome), None) if isinstance(outcome, tuple) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return first if isinstance(first, TrainState) else None


def strict_pipeline(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with every member under watch, in the same order."""
    return pipeline.around(lambda each: Watched(inner=each, **contract(each)))


def contents(state: TrainState) -> dict[str, Any]:
    """Return copies of all leaves by path: version counters miss writes through ``.data`` and by BatchNorm."""
    found = _tree.paths(state)
    return {path: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for path, leaf in found.items()}


def check_purity(hook: Hook, stage: Stage, before: dict[str, Any], state: TrainState) -> None:
    """Refuse a hook that wrote into its input.

    Raises:
        PurityError: names hook, stage and path.
    """
    found = _tree.paths(state)
    for path in (*found, *before):
        if path not in before or path not in found or not same(before[path], found[path]):
            raise PurityError(_complaint(hook, stage, path, "wrote into its input", "return a new tensor instead"))


def check_structure(hook: Hook, stage: Stage, before: TrainState, after: TrainState) -> None:
    """Refuse a state of another structure: structure decides what recompiles and what a checkpoint fits.

    Raises:
        StructureError: names hook, stage and path.
    """
    for name in STATIC:
        if getattr(before, name) != getattr(after, name):
            raise StructureError(_complaint(hook, stage, f"state.{name}", "changed a static field", "leave it"))
    left, right = _watched(before), _watched(after)
    old, new = _tree.paths(left), _tree.paths(right)
    for path in (*old, *new):
        was, now = _kinds(old.get(path, NOTHING), new.get(path, NOTHING))
        if was != now:
            raise StructureError(_complaint(hook, stage, path, f"changed {was} into {now}", KEEP))
    for name in FIELDS:
        if _tree.structure(getattr(left, name)) != _tree.structure(getattr(right, name)):
            raise StructureError(_complaint(hook, stage, f"state.{name}", "changed order or nesting", KEEP))


NOTHING = object()
KEEP = "build it in init and keep its kind"


def _watched(state: TrainState) -> TrainState:
    """Return the state without what may have any structure: the loss is threaded, the batch is the user's."""
    return state.replace(loss=nothing(), raw_loss=nothing(), batch=FrozenMap())


def _kinds(old: Any, new: Any) -> tuple[str, str]:
    """Name what must not change of a leaf; between tensors also the dtype of a number."""
    exact = isinstance(old, Tensor) and isinstance(new, Tensor)
    return _kind(old, exact=exact), _kind(new, exact=exact)


def _kind(leaf: Any, *, exact: bool) -> str:
    """Name shape, dtype and device; a Python number may become a 0-d tensor, as decisions do, on any device."""
    if isinstance(leaf, Tensor) and leaf.ndim:
        return f"a tensor {tuple(leaf.shape)} {leaf.dtype} on {leaf.device}"
    if isinstance(leaf, Tensor) and exact:
        return f"a 0-d tensor {leaf.dtype}"
    if isinstance(leaf, Tensor) and leaf.dtype is not torch.bool:
        return f"a number {_family(leaf.dtype.is_floating_point)}"
    if isinstance(leaf, bool | Tensor):
        return "a flag"
    if isinstance(leaf, int | float):
        return f"a number {_family(isinstance(leaf, float))}"
    return "nothing" if leaf is NOTHING else type(leaf).__name__


def _family(is_float: bool) -> str:
    return "that is real" if is_float else "that is whole"


def check_frame(hook: Hook, stage: Stage, before: TrainState, after: TrainState) -> None:
    """Refuse a change outside the hook's slot, its metrics, the loss and what it declares in ``writes``.

    Raises:
        PurityError: names hook, stage and path.
    """
    allowed = hook.writes | {"loss"}
    for name in FIELDS:
        if name not in allowed and (path := _changed(hook, name, before, after)) is not None:
            remedy = f'declare writes={{"{name}"}} or leave it'
            raise PurityError(_complaint(hook, stage, path, "changed what it does not own", remedy))


def _changed(hook: Hook, name: str, before: TrainState, after: TrainState) -> str | None:
    """Return the path of the first leaf of a field that changed without leave."""
    old, new = getattr(before, name), getattr(after, name)
    if old is new:
        return None
    own = {"hooks": {hook.name}, "metrics": set(hook.publishes)}.get(name, set[str]())
    left = _tree.paths(FrozenMap({k: v for k, v in old.items() if k not in own}) if own else old, f"state.{name}")
    right = _tree.paths(FrozenMap({k: v for k, v in new.items() if k not in own}) if own else new, f"state.{name}")
    return next((path for path in (*left, *right) if not same(left.get(path), right.get(path))), None)


def same(a: Any, b: Any) -> bool:
    """Compare two leaves bitwise, NaN equal to NaN."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is b or (type(a) is type(b) and bool(a == b or (a != a and b != b)))  # noqa: PLR0124 - NaN
    if a.shape != b.shape or a.dtype != b.dtype or a.is_sparse != b.is_sparse:
        return False
    if a.is_sparse:
        left, right = a.coalesce(), b.coalesce()
        return same(left.indices(), right.indices()) and same(left.values(), right.values())
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _complaint(hook: Hook, stage: Stage, path: str, what: str, remedy: str) -> str:
    return f"hook {hook.name!r} ({type(hook).__name__}) at {stage.name} {what}: {path}; {remedy}"
