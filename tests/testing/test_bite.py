"""Each law bites: a hook that breaks it is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import functrain
from functrain import EMA, FrozenMap, Hook, Outcome, Stage, TrainState, fold
from functrain._owners import Owners
from functrain.testing import Law, LawViolation, laws
from functrain.testing.breach import Breach, require_same
from functrain.testing.scene import Scene

STEP, AFTER = Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP
Break = Callable[[TrainState, Stage, Any], Any]


def state() -> TrainState:
    """Return a state of one weight and its gradient."""
    return TrainState(
        params={"main": {"w": torch.ones(2)}},
        grads={"main": {"w": torch.ones(2)}},
        loss=torch.tensor(1.0),
        stepped={"a": True},
        owners=Owners({"a": [("main", "w")]}),
        hooks={"bad": {"n": 0, "t": torch.zeros(2)}},
    )


def bad(update: Break, **claims: Any) -> Hook:
    """Return a hook that breaks something."""
    return functrain.hook(update, name="bad", **{"stages": STEP, "writes": {"params", "grads"}, **claims})


def scene(update: Break, **claims: Any) -> Scene:
    """Return a scene with a hook that breaks something."""
    return Scene(bad(update, **claims), state(), STEP, will_skip=False)


def moved(s: TrainState, field: str) -> TrainState:
    """Return a state in which one field's tensor is another one."""
    return s.replace(**{field: {"main": {"w": getattr(s, field)["main"]["w"] + 1.0}}})


def with_slot(s: TrainState, key: str, value: Any) -> TrainState:
    """Return a state with something in the slot of the hook."""
    return s.with_slot("bad", s.hooks["bad"] | {key: value})


def rewriting(write: Callable[[TrainState], object]) -> Break:
    """Return an update that does something to its input and gives it back."""
    return lambda s, _stage, _skip: (write(s), (s, True, s.loss))[1]


calls: list[int] = []


def count_up(s: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Give another answer each time."""
    calls.append(1)
    return s, True, s.loss + len(calls)


def in_place_where_donated(s: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Halve gradients where donated, and leave them elsewhere."""
    if s.donated:
        s.grads["main"]["w"].mul_(0.5)
    return s, True, s.loss


def by_form(s: TrainState, _stage: Stage, skip: Any) -> Any:
    """Vote differently for a tensor."""
    return s, not isinstance(skip, Tensor), s.loss


BROKEN: dict[str, tuple[Law, Scene]] = {
    "L1 proceed": (laws.CONTRACT, scene(lambda s, _g, _w: (s, 1, s.loss))),
    "L1 wide proceed": (laws.CONTRACT, scene(lambda s, _g, _w: (s, torch.tensor([True]), s.loss))),
    "L1 loss": (laws.CONTRACT, scene(lambda s, _g, _w: (s, True, torch.ones(2)))),
    "L1 state": (laws.CONTRACT, scene(lambda _s, _g, _w: (None, True, None))),
    "L2 in place": (laws.PURITY, scene(rewriting(lambda s: s.params["main"]["w"].add_(1.0)))),
    "L2 through data": (laws.PURITY, scene(rewriting(lambda s: s.params["main"]["w"].data.add_(1.0)))),
    "L2 into a container": (laws.PURITY, scene(rewriting(lambda s: s.hooks["bad"]._data.update(n=1)))),
    "L2 not a function": (laws.PURITY, scene(count_up)),
    "L3 new key": (laws.STRUCTURE, scene(lambda s, _g, _w: (with_slot(s, "m", 1), True, s.loss))),
    "L3 dtype": (laws.STRUCTURE, scene(lambda s, _g, _w: (with_slot(s, "t", torch.zeros(2).double()), True, s.loss))),
    "L3 shape": (laws.STRUCTURE, scene(lambda s, _g, _w: (with_slot(s, "t", torch.zeros(3)), True, s.loss))),
    "L3 kind": (laws.STRUCTURE, scene(lambda s, _g, _w: (with_slot(s, "n", 0.0), True, s.loss))),
    "L3 static": (laws.STRUCTURE, scene(lambda s, _g, _w: (s.replace(world=2), True, s.loss))),
    "L5 undeclared": (laws.FRAME, scene(lambda s, _g, _w: (moved(s, "params"), True, s.loss), writes={"grads"})),
    "L6 gradients": (laws.VETO_SAFETY, scene(lambda s, _g, _w: (moved(s, "grads"), True, s.loss))),
    "L6 parameters": (laws.VETO_SAFETY, scene(lambda s, _g, _w: (moved(s, "params"), True, s.loss))),
    "L14": (laws.DONATION, scene(in_place_where_donated)),
    "forms": (laws.FORMS, scene(by_form)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_hook_is_caught(case: str) -> None:
    """The checker raises on a hook that breaks the law, and on the identity it does not."""
    law, broken = BROKEN[case]
    with pytest.raises(LawViolation) as violation:
        law.check(broken)
    assert violation.value.law is law
    law.check(Scene(Hook(name="bad", stages=STEP), state(), STEP, False))


class Everywhere(Hook):
    """A hook that acts outside its claims."""

    def __call__(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Act at any stage."""
        return Outcome(state.replace(loss=state.loss + 1.0), True, state.loss)


class Eager(EMA):
    """An average that moves without a step."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Copy the weights."""
        slot = state.hooks[self.name] | {"shadow": state.params["main"]}
        return Outcome(state.with_slot(self.name, slot), True, state.loss)


class Shortcut(functrain.Pipeline):
    """A fold that stops at the first veto."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Leave early."""
        for each in self.hooks:
            if stage in each.stages and not each(state, stage, will_skip).proceed:
                return Outcome(state, False, state.loss)
        return Outcome(state, True, state.loss)


def test_l4_bites() -> None:
    """A hook that acts where it claims nothing is caught."""
    with pytest.raises(LawViolation, match="another state at SETUP"):
        laws.LOCALITY.check(Scene(Everywhere(name="bad", stages=frozenset({STEP})), state(), STEP, False))


def test_l6_bites_for_shadows() -> None:
    """An average that follows a skipped step is caught."""
    eager = Eager()
    ready = fold(eager).prepared(state())
    ready = moved(ready, "params")
    with pytest.raises(LawViolation, match="a shadow moved without a step"):
        laws.VETO_SAFETY.check(Scene(eager, ready, AFTER, True))


@pytest.mark.parametrize("came_in", [False, True])
def test_l10_and_l11_bite(came_in: bool) -> None:
    """A fold that forgets what came in, or what later members say, is caught by the fold by hand."""
    members = [Hook(name=name).model_copy() for name in "ab"]
    veto = functrain.hook(lambda s, _g, _w: (s, False, s.loss * 2), name="veto", priority=1)
    pipeline = Shortcut(name="pipeline", hooks=(veto, *members))
    with pytest.raises(LawViolation):
        laws.FOLD.check(Scene(pipeline, state(), Stage.DO_BACKWARD, came_in))


def test_the_comparison_sees_signs_dtypes_and_kinds() -> None:
    """Zero and minus zero, int and bool, float32 and float64, and missing leaves differ; NaN equals NaN."""
    tree = FrozenMap({"a": torch.tensor([0.0, float("nan")]), "b": 1})
    require_same(tree, tree | {"a": torch.tensor([0.0, float("nan")])}, "same")
    for other in ({"a": torch.tensor([-0.0, float("nan")])}, {"b": True}, {"a": tree["a"].double()}, {"c": 1}):
        with pytest.raises(Breach, match="other"):
            require_same(tree, tree | other, "other")
