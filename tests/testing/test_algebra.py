"""Laws of composition, on drawn pipelines of library and synthetic hooks."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from functrain import Hook, Shell, SkipLimitError, Stage
from functrain.testing import Law, laws
from functrain.testing.laws.veto import check_one_vote_more, voter_of
from functrain.testing.pipelines import pipelines
from functrain.testing.scene import Scene, scenes

LAWS = [laws.MONOID, laws.FOLD, laws.VETO, laws.EXACTLY_ONCE]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@given(scene=scenes(pipelines()))
def test_composition(law: Law, scene: Scene) -> None:
    """Drawn pipelines keep the law in both forms."""
    law.check(scene)


def voters() -> st.SearchStrategy[Hook]:
    """Return hooks that vote and do nothing else, anywhere in the order."""
    return st.builds(
        voter_of, st.sampled_from([True, False, torch.tensor(True), torch.tensor(False)]), st.integers(0, 60)
    )


@given(scene=scenes(pipelines()), voter=voters())
def test_l11_one_vote_more_never_turns_a_skip_into_a_step(scene: Scene, voter: Hook) -> None:
    """A further hook that only votes can stop an update and never start one."""
    check_one_vote_more(scene, voter)


class Counted(torch.autograd.Function):
    """The identity, which notes each time it is differentiated."""

    notes: ClassVar[list[str]] = []

    @staticmethod
    def forward(_ctx: Any, loss: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Pass the loss on."""
        return loss.clone()

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Pass the gradient on."""
        Counted.notes.append("backward")
        return grad


@given(pipeline=pipelines(), slopes=st.lists(st.sampled_from([0.5, 1.0, 9.0, float("nan")]), min_size=1, max_size=5))
def test_l12_at_most_one_backward(pipeline: Any, slopes: list[float]) -> None:
    """On the shell each micro-batch is differentiated once, or, dropped, not at all."""
    models = {"main": nn.Linear(1, 1), "teacher": nn.Linear(1, 1)}
    shell = Shell(models, torch.optim.SGD(models["main"].parameters(), lr=0.01), pipeline)
    for slope in slopes:
        Counted.notes.clear()
        with suppress(SkipLimitError), shell.batch({"tokens": 3}):
            shell.update(Counted.apply(models["main"](torch.tensor([slope])).sum()))
        dropped = any(shell.state.vetoes.get(Stage.DO_BACKWARD, {}).values())
        assert Counted.notes == ([] if dropped else ["backward"])
