"""L10: pipelines are a monoid, and a fold is what calling the members one by one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from functrain import GATED_STAGES, Hook, Pipeline, Stage, TrainState, fold
from functrain.testing.breach import Breach, require_equal, require_same
from functrain.testing.forms import cloned, in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene, outcome_of


def is_pipeline(hook: Hook) -> bool:
    """Tell a pipeline."""
    return isinstance(hook, Pipeline)


def check_monoid(scene: Scene) -> None:
    """Check unit, associativity, and that the order is the stable sort."""
    members = scene.members()
    whole = fold(*members)
    require_equal(whole, fold() + whole, "fold() is no unit on the left")
    require_equal(whole, whole + fold(), "fold() is no unit on the right")
    for cut in range(len(members) + 1):
        parts = fold(*members[:cut]) + fold(*members[cut:])
        if len(parts) != len(whole) or any(a is not b for a, b in zip(parts, whole, strict=True)):
            raise Breach(f"+ is not associative, cut at {cut}", "", whole, parts)
    backwards = members[::-1]
    order = sorted(backwards, key=lambda each: each.priority)
    require_equal([each.name for each in order], [each.name for each in fold(*backwards)], "not the stable sort")
    _check_unit(scene)


def _check_unit(scene: Scene) -> None:
    state = in_form(scene.state, scene.form)
    found = fold()(state, scene.stage, scene.will_skip)
    if found.state is not state or found.proceed is scene.will_skip or found.loss is not state.loss:
        raise Breach("fold() is not the identity on (state, loss, not will_skip)")


def by_hand(members: Sequence[Hook], state: TrainState, stage: Stage, *, will_skip: bool) -> tuple[TrainState, bool]:
    """Fold by hand: sort, call, thread, conjoin; the vetoes are left out."""
    proceed = not will_skip
    for each in sorted(members, key=lambda member: member.priority):
        told = not proceed if stage in GATED_STAGES else will_skip
        after, verdict, loss = outcome_of(each, state, stage, told)
        state = after.replace(loss=loss) if stage is Stage.DO_BACKWARD else after
        proceed = proceed and bool(verdict) if stage in GATED_STAGES else proceed
    return state, proceed


def check_fold(scene: Scene) -> None:
    """Check that the fold is what the reference does."""
    state: Any = cloned(in_form(scene.state, scene.form))
    found = outcome_of(scene.hook, state, scene.stage, scene.will_skip)
    with torch.no_grad():
        expected, proceed = by_hand(scene.members(), state, scene.stage, will_skip=scene.will_skip)
    require_equal(proceed, bool(found.proceed), "another verdict than by hand", "proceed")
    states = (each.replace(vetoes={}) for each in (expected, found.state))
    require_same(*states, what="another state than by hand")


MONOID = Law("L10 monoid", "fold() is the unit, + is associative, order is the stable sort", check_monoid, is_pipeline)
FOLD = Law("L10 fold", "the fold is what calling the members one by one does", check_fold, is_pipeline)
