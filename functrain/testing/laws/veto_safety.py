"""L6: what stays if the step is vetoed."""

from __future__ import annotations

from dataclasses import replace

from functrain import Stage, TrainState
from functrain._wrapper import innermost
from functrain.hooks.average import Average
from functrain.testing.breach import require_same
from functrain.testing.forms import cloned, in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene

STEP, AFTER = Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP


def check_veto_safety(scene: Scene) -> None:
    """Check gradients and parameters at a vetoed step, and shadows after it, donated or not."""
    for donated in (False, True):
        after = scene.run(stage=STEP, will_skip=True, donated=donated).state
        before = cloned(in_form(scene.state, scene.form))
        for name in ("params", "grads"):
            require_same(getattr(before, name), getattr(after, name), "a vetoed step changed", f"state.{name}")
        keys = tuple(scene.state.stepped)
        for last in (False, True):
            stepped = {key: last and key == keys[-1] for key in keys}
            state = scene.state.replace(stepped=stepped)
            _check_shadows(replace(scene, state=state), will_skip=not any(stepped.values()), donated=donated)


def _check_shadows(scene: Scene, *, will_skip: bool, donated: bool) -> None:
    after = scene.run(stage=AFTER, will_skip=will_skip, donated=donated).state
    before = cloned(in_form(scene.state, scene.form))
    for each in scene.members():
        inner = innermost(each)
        if isinstance(inner, Average) and not _model_stepped(scene.state, inner.model_key, will_skip=will_skip):
            slots = (state.hooks[each.name] for state in (before, after))
            require_same(*slots, what="a shadow moved without a step", root=f'state.hooks["{each.name}"]')


def _model_stepped(state: TrainState, model: str, *, will_skip: bool) -> bool:
    """Tell whether an optimizer of the model stepped; a model without optimizers follows any step."""
    own = state.owners.of_model(model)
    return any(bool(state.stepped[key]) for key in own) if own else not will_skip


VETO_SAFETY = Law("L6 veto safety", "a vetoed step moves no gradient, parameter or shadow", check_veto_safety)
