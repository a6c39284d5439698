"""The laws of composition: monoid, veto, exactly once; each compared with a reference written in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import SkipValidation

from functrain import GATED_STAGES, Hook, Outcome, Stage, TrainState, fold
from functrain._select import Flag
from functrain._wrapper import CONTRACT, Wrapper
from functrain.testing.forms import assert_same, cloned, in_form
from functrain.testing.scene import Scene


class Spy(Wrapper):
    """A hook that notes what it was told and what it answered."""

    inner: Annotated[Hook, SkipValidation]
    notes: Annotated[list[Any], SkipValidation]

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Pass the call on."""
        outcome = Outcome(*self.inner.update(state, stage, will_skip))
        self.notes.append((self.name, bool(will_skip), outcome.proceed))
        return outcome


def spied(hook: Hook, notes: list[Any]) -> Spy:
    """Put a spy around a hook."""
    return Spy(inner=hook, notes=notes, **{name: getattr(hook, name) for name in CONTRACT})


def reference(members: Sequence[Hook], state: TrainState, stage: Stage, will_skip: bool) -> tuple[Any, bool]:
    """Fold by hand: sort, call, thread, conjoin; the vetoes are left out."""
    proceed = not will_skip
    for each in sorted(members, key=lambda member: member.priority):
        told = not proceed if stage in GATED_STAGES else will_skip
        after, verdict, loss = each(state, stage, told)
        state = after.replace(loss=loss) if stage is Stage.DO_BACKWARD else after
        proceed = proceed and bool(verdict) if stage in GATED_STAGES else proceed
    return state, proceed


def check_monoid(scene: Scene) -> None:
    """Check unit, associativity, and that the order is the stable sort."""
    members = scene.members()
    assert fold() + fold(*members) == fold(*members) == fold(*members) + fold()
    for cut in range(len(members) + 1):
        left, right = fold(*members[:cut]), fold(*members[cut:])
        assert left + right == fold(*members), f"cut at {cut}"
        assert all(a is b for a, b in zip(left + right, fold(*members), strict=True))
    backwards = members[::-1]
    assert [*fold(*backwards)] == sorted(backwards, key=lambda each: each.priority)
    state = in_form(scene.state, scene.form)
    found = fold()(state, scene.stage, scene.will_skip)
    assert (found.state is state, found.proceed, found.loss is state.loss) == (True, not scene.will_skip, True)


def check_fold(scene: Scene) -> None:
    """Check that the fold is what the reference does."""
    state = cloned(in_form(scene.state, scene.form))
    with torch.no_grad():
        found = scene.hook(state, scene.stage, scene.will_skip)
        expected, proceed = reference(scene.members(), state, scene.stage, scene.will_skip)
    assert bool(found.proceed) is proceed, f"proceed={found.proceed}, and by hand {proceed}"
    assert_same(found.state.replace(vetoes={}), expected.replace(vetoes={}), "the fold by hand differs")


def check_veto(scene: Scene) -> None:
    """Check that the verdict is the conjunction, that will_skip only grows, and that vetoes are recorded."""
    for stage in GATED_STAGES:
        notes: list[Any] = []
        pipeline = fold(*(spied(each, notes) for each in scene.members()))
        with torch.no_grad():
            found = pipeline(cloned(scene.state), stage, scene.will_skip)
        told = [will_skip for _, will_skip, _ in notes]
        assert told == sorted(told), f"will_skip fell along the fold: {notes}"
        verdicts = {name: bool(proceed) for name, _, proceed in notes}
        assert bool(found.proceed) is (not scene.will_skip and all(verdicts.values())), str(notes)
        assert {name: not bool(found.state.veto(stage, name)) for name in verdicts} == verdicts


def check_no_rescue(scene: Scene, voter: Hook) -> None:
    """Check that a hook that only votes, put anywhere, never turns a skip into a step."""
    for stage in GATED_STAGES:
        with torch.no_grad():
            before = scene.hook(cloned(scene.state), stage, scene.will_skip)
            after = (scene.hook + voter)(cloned(scene.state), stage, scene.will_skip)
        assert bool(before.proceed) or not bool(after.proceed), f"a skip became a step at {stage.name}"


def check_exactly_once(scene: Scene) -> None:
    """Check that who claims a stage is called once, in order, whoever vetoed; and nobody else."""
    for stage in Stage:
        for will_skip in (False, True):
            notes: list[Any] = []
            pipeline = fold(*(spied(each, notes) for each in scene.members()))
            with torch.no_grad():
                pipeline(cloned(scene.state), stage, will_skip)
            assert [name for name, *_ in notes] == [each.name for each in pipeline if stage in each.stages]
