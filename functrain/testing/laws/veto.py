"""L11 and L12: one veto is enough, and everybody is asked."""

from __future__ import annotations

from typing import Any

import torch

from functrain import GATED_STAGES, Hook, Stage, fold, hook
from functrain.testing.breach import Breach, require_equal
from functrain.testing.forms import cloned
from functrain.testing.law import Law
from functrain.testing.laws.monoid import is_pipeline
from functrain.testing.laws.spy import spied
from functrain.testing.scene import Scene, outcome_of


def check_veto(scene: Scene) -> None:
    """Check that the verdict is the conjunction, that will_skip only grows, and that vetoes are recorded."""
    for stage in GATED_STAGES:
        notes: list[Any] = []
        found = outcome_of(spied(scene.members(), notes), cloned(scene.state), stage, scene.will_skip)
        told = [will_skip for _, will_skip, _ in notes]
        require_equal(sorted(told), told, f"will_skip fell along the fold at {stage.name}")
        verdicts = {name: bool(proceed) for name, _, proceed in notes}
        together = not scene.will_skip and all(verdicts.values())
        require_equal(together, bool(found.proceed), f"not the conjunction of {verdicts}", "proceed")
        recorded = {name: not bool(found.state.veto(stage, name)) for name in verdicts}
        require_equal(verdicts, recorded, "vetoes were not recorded", f"state.vetoes[{stage!r}]")


def check_no_rescue(scene: Scene) -> None:
    """Check that a hook that only votes, put at either end, never turns a skip into a step."""
    for voter in VOTERS:
        check_one_vote_more(scene, voter)


def check_one_vote_more(scene: Scene, voter: Hook) -> None:
    """Check that one hook more stops what was going on at most, and never starts it."""
    for stage in GATED_STAGES:
        before = outcome_of(scene.hook, cloned(scene.state), stage, scene.will_skip)
        after = outcome_of(scene.hook + voter, cloned(scene.state), stage, scene.will_skip)
        if bool(after.proceed) and not bool(before.proceed):
            raise Breach(
                f"one vote more turned a skip into a step at {stage.name}", "proceed", before.proceed, after.proceed
            )


def voter_of(proceed: Any, priority: int) -> Hook:
    """Return a hook that votes and does nothing else."""
    return hook(lambda state, _stage, _skip: (state, proceed, state.loss), name="voter", priority=priority)


VOTERS = tuple(voter_of(proceed, priority) for proceed in (True, torch.tensor(True)) for priority in (0, 99))


def check_exactly_once(scene: Scene) -> None:
    """Check that who claims a stage is called once, in order, whoever vetoed; and nobody else."""
    for stage in Stage:
        for will_skip in (False, True):
            notes: list[Any] = []
            outcome_of(spied(scene.members(), notes), cloned(scene.state), stage, will_skip)
            claimed = [each.name for each in fold(*scene.members()) if stage in each.stages]
            require_equal(claimed, [name for name, *_ in notes], f"not each once and in order at {stage.name}")


VETO = Law("L11 veto", "proceeds iff every member proceeds; will_skip only grows", check_veto, is_pipeline)
NO_RESCUE = Law("L11 no rescue", "adding a hook never turns a skip into a step", check_no_rescue, is_pipeline)
EXACTLY_ONCE = Law(
    "L12 exactly once",
    "each claiming hook is called once per stage, veto or not",
    check_exactly_once,
    is_pipeline,
    cost=2,
)
