"""What hooks return and users give as a loss: refused where it cannot be acted upon, and nothing was done."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import functrain
from functrain import (
    GATED_STAGES,
    Accumulate,
    Hook,
    Stage,
)
from tests.ids import plain
from tests.scalars import Weight, applied, sgd_shell, step

GATED = sorted(GATED_STAGES, key=list(Stage).index)


def answering(outcome: Any, stage: Stage) -> Hook:
    """Return a hook that gives a fixed answer; a callable is asked with the state."""

    def answer(state: Any, _stage: Stage, _skip: Any) -> Any:
        return outcome(state) if callable(outcome) else outcome

    return functrain.hook(answer, name="odd", stages=stage)


@pytest.mark.parametrize("stage", GATED)
@pytest.mark.parametrize(
    ("proceed", "kind"),
    [
        (None, "NoneType"),
        (1, "int"),
        ("no", "str"),
        (torch.tensor([True]), r"a Tensor of shape \(1,\) and dtype torch.bool"),
        (torch.tensor(1.0), r"a Tensor of shape \(\) and dtype torch.float32"),
    ],
    ids=plain,
)
def test_proceed_that_is_no_verdict(stage: Stage, proceed: Any, kind: str) -> None:
    """Hook, stage, type and remedy are named, and nothing was done: truthiness would hide a forgotten return."""
    fuse = [proceed]

    def vote(state: Any) -> Any:
        return state, fuse.pop() if fuse else True, state.loss

    shell = sgd_shell(Weight(), answering(vote, stage))
    where = rf"FunctionHook 'odd' at {stage.name} must return a bool or a 0-d bool tensor as proceed; got {kind}"
    with pytest.raises(TypeError, match=rf"{where}.* Return True to proceed or False to skip"):
        step(shell, 1.0)
    assert (applied(shell), shell.state.clock.batch) == (0.0, 0)
    step(shell, 3.0)
    assert applied(shell) == 3.0


@pytest.mark.parametrize("stage", GATED)
@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (None, r"must return \(state, proceed, loss\); got NoneType. Return functrain.Outcome\(state, True"),
        (lambda state: (state, True), r"must return \(state, proceed, loss\); got tuple"),
        (lambda state: [state, True, None], r"must return \(state, proceed, loss\); got list"),
        ((None, True, None), "must return a TrainState first; got NoneType"),
        (({}, True, None), "must return a TrainState first; got dict"),
    ],
)
def test_what_is_no_outcome(stage: Stage, outcome: Any, message: str) -> None:
    """A forgotten or a mangled return value is named, with what to return."""
    shell = sgd_shell(Weight(), answering(outcome, stage))
    with pytest.raises(TypeError, match=f"FunctionHook 'odd' at {stage.name} {message}") as caught:
        step(shell, 1.0)
    assert f"raised by hook 'odd' at {stage.name}" in caught.value.__notes__


@pytest.mark.parametrize(
    ("loss", "kind", "message"),
    [
        (None, TypeError, "'odd' did not provide a tensor loss at DO_BACKWARD; got NoneType. Return state.loss"),
        (3.0, TypeError, "'odd' did not provide a tensor loss at DO_BACKWARD; got float"),
        (torch.ones(2), ValueError, r"'odd' provided a loss of shape \(2,\) at DO_BACKWARD; .* Reduce it: loss.mean"),
        (torch.ones(1, 1), ValueError, r"'odd' provided a loss of shape \(1, 1\) at DO_BACKWARD"),
        (torch.ones(()), ValueError, "the loss has no graph"),
    ],
    ids=plain,
)
def test_a_hook_without_a_scalar_loss(loss: Any, kind: type[Exception], message: str) -> None:
    """No loss, no scalar, or no graph at DO_BACKWARD: the weights stay, and the message names hook and stage."""
    shell = sgd_shell(Weight(), answering(lambda state: (state, True, loss), Stage.DO_BACKWARD))
    with pytest.raises(kind, match=message):
        step(shell, 1.0)
    assert applied(shell) == 0.0


@pytest.mark.parametrize(
    ("loss", "kind", "message"),
    [
        (None, TypeError, "'shell.update' did not provide a tensor loss at DO_BACKWARD; got NoneType"),
        (0.5, TypeError, "'shell.update' did not provide a tensor loss at DO_BACKWARD; got float"),
        (torch.ones(3), ValueError, r"'shell.update' provided a loss of shape \(3,\) .* Reduce it: loss.mean\(\)"),
        (torch.ones(()), ValueError, "the loss has no graph: it requires no gradient; was it detached"),
    ],
    ids=plain,
)
@pytest.mark.parametrize("every", [1, 2])
def test_a_user_without_a_scalar_loss(loss: Any, kind: type[Exception], message: str, every: int) -> None:
    """The same of what is given to update, in and outside a window; the next batch trains."""
    model = Weight()
    shell = sgd_shell(model, Accumulate(every=every))
    with pytest.raises(kind, match=message), shell.batch():
        shell.update(loss)
    for _ in range(every):
        step(shell, 2.0)
    assert (applied(shell), shell.state.clock.batch) == (2.0, every)
