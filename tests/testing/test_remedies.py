"""What a violation says about the way out, and that two values are told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from functrain import Hook, Outcome, Stage, TrainState
from functrain.testing import LawViolation, check_hook, laws
from functrain.testing.differences import unlike
from functrain.testing.remedies import REMEDIES

STEP = frozenset({Stage.DO_OPTIMIZER_STEP})


class Two(Hook):
    """Returns two values where there are three."""

    stages: frozenset[Stage] = STEP

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Any:
        """Forget the loss."""
        return state, True


class Counting(Hook):
    """Keeps a count on its own object."""

    stages: frozenset[Stage] = STEP

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Any:
        """Count the calls."""
        vars(self)["calls"] = vars(self).get("calls", 0) + 1
        return Outcome(state, True, state.loss)


class Elsewhere(Hook):
    """Keeps a count in a list of the module."""

    stages: frozenset[Stage] = STEP

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Any:
        """Veto every second call."""
        CALLS.append(stage)
        return Outcome(state, len(CALLS) % 2 == 0, state.loss)


class InPlace(Hook):
    """Writes into the loss that it is given."""

    stages: frozenset[Stage] = STEP

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Any:
        """Add to the loss."""
        state.loss.add_(1)
        return Outcome(state, True, state.loss)


CALLS = list[Stage]()
BROKEN = {
    Two: "instead: return three values: state, True, state.loss",
    Counting: r"instead: keep what is remembered in the hook's slot.*state\.with_slot",
    Elsewhere: r"instead: keep what is remembered in the hook's slot.*state\.with_slot",
    InPlace: r"instead: make new tensors, x \* y where it says x \*= y",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_violation_says_what_to_write(kind: type[Hook]) -> None:
    """Besides the law and both values, the text says what stands for it."""
    with pytest.raises(LawViolation, match=BROKEN[kind]):
        check_hook(kind())


def test_every_remedy_is_of_something_that_is_said() -> None:
    """No remedy waits for a description that no law gives any more."""
    said = "".join(path.read_text() for path in Path(laws.__file__).parent.glob("*.py"))
    assert all(beginning.partition(":")[0] in said for beginning in REMEDIES)


def test_a_witness_imports_public_names_only() -> None:
    """The program that shows a violation imports nothing whose module begins with an underscore."""
    with pytest.raises(LawViolation) as caught:
        check_hook(Counting())
    state = caught.value.scene.state
    caught.value.scene = type(caught.value.scene)(
        hook=caught.value.scene.hook,
        state=state.replace(window=state.window.replace(entered=1), clock=state.clock.replace(step=3)),
        stage=Stage.DO_OPTIMIZER_STEP,
        will_skip=False,
    )
    snippet = caught.value.snippet()
    assert "Window(" in snippet
    assert "Clock(" in snippet
    assert not [line for line in snippet.splitlines() if "import" in line and "._" in line]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (torch.full((3,), 0.3), torch.full((3,), 0.3 + 3e-8), "by at most 2.98e-08"),
        (torch.zeros(2000), torch.arange(2000.0).eq(1000).float(), "by at most 1"),
        (1, "1", "1 != '1'"),
    ],
    ids=["rounding", "in the middle", "kind"],
)
def test_values_that_print_alike_are_told_apart(one: Any, other: Any, told: str) -> None:
    """Where two values print the same digits, the difference itself is said."""
    assert told in " ".join(unlike({"w": one}, {"w": other}, "state"))
