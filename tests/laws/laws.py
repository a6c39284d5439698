"""The laws of single hooks and pipelines: each with a name, a statement, and a checker that raises AssertionError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from functrain import EMA, Pipeline, Stage, TrainState
from functrain._state import FIELDS, STATIC
from functrain._tree import FrozenMap, leaves, paths, structure
from functrain._wrapper import innermost
from functrain.testing.forms import assert_same, cloned, in_form
from functrain.testing.scene import Scene

STEP, AFTER = Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP


@dataclass(frozen=True)
class Law:
    """A statement about every hook, and how to check it on one scene."""

    name: str
    statement: str
    check: Callable[[Scene], None]

    def __str__(self) -> str:
        """Name the law in a test's id."""
        return self.name.split()[0]


def check_contract(scene: Scene) -> None:
    """Check what comes back."""
    outcome: Any = scene.hook(in_form(scene.state, scene.form), scene.stage, scene.will_skip)
    state, proceed, loss = outcome
    assert isinstance(state, TrainState), f"state is a {type(state).__name__}"
    assert _is_flag(proceed), f"proceed is {proceed!r}"
    assert loss is None or (isinstance(loss, Tensor) and loss.ndim == 0), f"loss is {loss!r}"


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype is torch.bool and value.ndim == 0)


def check_purity(scene: Scene) -> None:
    """Check versions, identities and contents of the input, and that equal inputs give equal outputs."""
    state = cloned(in_form(scene.state, scene.form))
    copy, versions, containers = cloned(state), _versions(state), _containers(state)
    first = scene.call(state)
    assert _versions(state) == versions, "a version counter moved"
    assert _containers(state) == containers, "a container of the input changed"
    assert_same(state, copy, "the input changed")
    assert_same(tuple(first), tuple(scene.call(state)), "the same input gave another output")
    assert_same(tuple(first), tuple(scene.call(copy)), "an equal input gave another output")


def _versions(state: TrainState) -> list[Any]:
    return [(id(leaf), leaf._version if isinstance(leaf, Tensor) else None) for leaf in leaves(state)]


def _containers(state: TrainState) -> list[Any]:
    """Return who holds whom: the identity of every field, and the keys and identities inside."""
    return [(name, id(value)) for name, value in state.__dict__.items()] + [structure(state)]


def check_structure(scene: Scene) -> None:
    """Check structure, shapes, dtypes and devices; numbers in Python's form keep their kind."""
    before = in_form(scene.state, scene.form)
    after = scene.run().state
    for name in STATIC:
        assert getattr(before, name) == getattr(after, name), f"state.{name} changed"
    assert structure(after) == structure(before), f"{structure(before)} became {structure(after)}"
    now = paths(after)
    for path, leaf in paths(before).items():
        assert _kind(leaf) == _kind(now[path]), f"{path}: {_kind(leaf)} became {_kind(now[path])}"


def _kind(leaf: Any) -> Any:
    """Return what must stay; a Python number may become the 0-d tensor that stands for it."""
    as_tensor = in_form(leaf, "tensor")
    if isinstance(as_tensor, Tensor):
        return tuple(as_tensor.shape), as_tensor.dtype, as_tensor.device
    return type(leaf)


def check_locality(scene: Scene) -> None:
    """Check that nothing happens outside the claimed stages: the very same state and loss come back."""
    state = in_form(scene.state, scene.form)
    for stage in Stage:
        if stage not in scene.hook.stages:
            for will_skip in (False, True):
                found = scene.hook(state, stage, will_skip)
                assert found.state is state, f"another state at {stage.name}"
                assert found.loss is state.loss, f"another loss at {stage.name}"
                passed = not will_skip if isinstance(scene.hook, Pipeline) else True
                assert found.proceed is passed, f"proceed={found.proceed} at {stage.name}"


def check_frame(scene: Scene) -> None:
    """Check that all else is bitwise as before."""
    before, after = cloned(in_form(scene.state, scene.form)), scene.run().state
    allowed = scene.hook.writes | {"loss"} | ({"vetoes"} if isinstance(scene.hook, Pipeline) else set())
    slots = {each.name for each in scene.members()}
    for name in set(FIELDS) - allowed:
        own = {"hooks": slots, "metrics": set(scene.hook.publishes)}.get(name, set[str]())
        assert_same(_without(getattr(before, name), own), _without(getattr(after, name), own), f"state.{name} changed")


def _without(field: Any, keys: set[str]) -> Any:
    return FrozenMap({key: value for key, value in field.items() if key not in keys}) if keys else field


def check_veto_safety(scene: Scene) -> None:
    """Check gradients and parameters at a vetoed step, and shadows after it, donated or not."""
    for donated in (False, True):
        after = scene.run(stage=STEP, will_skip=True, donated=donated).state
        before = cloned(in_form(scene.state, scene.form))
        assert_same((before.params, before.grads), (after.params, after.grads), "a vetoed step changed")
        for ran in (False, True):
            stepped = {key: ran and key == "head" for key in scene.state.stepped}
            state = scene.state.replace(stepped=stepped)
            _check_shadows(scene, state, will_skip=not any(stepped.values()), donated=donated)


def _check_shadows(scene: Scene, state: TrainState, *, will_skip: bool, donated: bool) -> None:
    after = scene.run(state=state, stage=AFTER, will_skip=will_skip, donated=donated).state
    before = cloned(in_form(state, scene.form))
    for each in scene.members():
        inner = innermost(each)
        if isinstance(inner, EMA) and not _model_stepped(state, inner.model_key, will_skip):
            assert_same(before.hooks[each.name], after.hooks[each.name], f"{each.name} moved without a step")


def _model_stepped(state: TrainState, model: str, will_skip: bool) -> bool:
    """Tell whether an optimizer of the model stepped; a model without optimizers follows any step."""
    own = state.owners.of_model(model)
    return any(state.stepped[key] for key in own) if own else not will_skip


def check_donation(scene: Scene) -> None:
    """Check that a donated call gives what the undonated one gives."""
    kept, given = scene.run(), scene.run(donated=True)
    assert given.state.donated, "donation was taken back"
    given = given._replace(state=given.state.replace(donated=False))
    assert_same(tuple(kept), tuple(given), "donated and undonated differ")


def check_forms(scene: Scene) -> None:
    """Check that Python numbers and 0-d tensors make the same decisions and the same tensors."""
    python, tensor = scene.run(form="python"), scene.run(form="tensor")
    assert_same(in_form(tuple(python), "tensor"), tuple(tensor), "the two forms differ")


CONTRACT = Law("L1 contract", "returns (TrainState, bool or 0-d bool tensor, scalar tensor or None)", check_contract)
PURITY = Law("L2 purity", "writes nothing of its input; equal inputs give bitwise equal outputs", check_purity)
STRUCTURE = Law("L3 structure", "structure, shapes, dtypes, devices and static fields stay", check_structure)
LOCALITY = Law("L4 locality", "identity outside the stages it claims", check_locality)
FRAME = Law("L5 frame", "changes only slot, metrics, loss and what writes declares", check_frame)
VETO_SAFETY = Law("L6 veto safety", "a vetoed step moves no gradient, parameter or shadow", check_veto_safety)
DONATION = Law("L14 donation", "a donated call returns bitwise what the undonated one returns", check_donation)
FORMS = Law("forms", "written once: Python numbers and 0-d tensors give the same", check_forms)
