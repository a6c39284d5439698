"""What may stand in place of a hook, and laws on drawn hooks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st

from functrain import EMA, Accumulate, ClipNorm, Hook, Outcome, Stage, TrainState, fold
from functrain.testing import LawViolation, check_hook, from_config, laws
from functrain.testing.subject import example_of, subject_of


def plain(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Do nothing."""
    return state, True, state.loss


class DropsLoss(Hook):
    """A hook that is right until a field is large."""

    stages: Any = frozenset({Stage.DO_BACKWARD})
    size: int = 0

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Lose the loss."""
        return Outcome(state, True, state.loss if self.size < 3 else None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (EMA(), EMA()),
        (EMA() + Accumulate(every=2), fold(EMA(), Accumulate(every=2))),
        (lambda: EMA(decay=0.5), EMA(decay=0.5)),
        (partial(EMA, decay=0.5), EMA(decay=0.5)),
        (lambda decay=0.25: EMA(decay=decay), EMA(decay=0.25)),
    ],
)
def test_hooks_and_what_makes_them(given: Any, expected: Hook) -> None:
    """A factory is called."""
    assert subject_of(given) == expected


def test_functions_classes_and_strategies() -> None:
    """A function is a hook, a class is drawn from."""
    assert example_of(subject_of(plain)).name == "plain"
    assert example_of(subject_of(lambda: plain)).name == "plain"
    assert repr(subject_of(EMA)) == "from_config(EMA)"
    assert repr(subject_of(from_config(EMA, decay=0.5))) == "from_config(EMA, decay=0.5)"


@pytest.mark.parametrize("value", [3, "EMA", [EMA()], None, int, lambda: 3, object()])
def test_anything_else_is_refused(value: Any) -> None:
    """With what is wanted."""
    with pytest.raises(TypeError, match="laws are checked on a hook, a pipeline, a class"):
        example_of(subject_of(value))


def test_a_strategy_of_something_else_is_refused() -> None:
    """It has to draw hooks."""
    with pytest.raises(TypeError, match=r"integers\(\) draws 0"):
        check_hook(st.integers())


def test_drawn_hooks_are_checked() -> None:
    """The configuration that shows the violation is shrunk with the state."""
    with pytest.raises(LawViolation, match="the loss was dropped") as caught:
        check_hook(from_config(DropsLoss, size=st.integers(0, 1000)), laws=[laws.CONTRACT], seed=0)
    assert caught.value.scene.hook == DropsLoss(size=3)


def test_laws_apply_to_each_drawn_hook_by_itself() -> None:
    """What is said of one kind is not asked of another."""
    drawn = st.sampled_from([ClipNorm(max_norm=1.0), EMA()])
    report = check_hook(drawn, laws=[laws.BOUNDED, laws.CONTRACT], max_examples=30, seed=0)
    assert report.broken == ()
    assert 0 < report["clip: bounded"].examples < report["L1 contract"].examples
