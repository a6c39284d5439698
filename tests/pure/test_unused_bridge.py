"""Parameters that the loss does not use, on the way from one interpreter to the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from functrain import Accumulate, ClipNorm, Shell, SkipNonFinite, TrainState, pure
from tests.pure.spare import CASES, Case, batch, built, differing, feed, leaves_of

HOOKS = (Accumulate(every=2), ClipNorm(max_norm=0.1), SkipNonFinite())
DECAY: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.3}
OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], pure.Optimizer]] = {
    "sgd": (lambda params: torch.optim.SGD(params, **DECAY), pure.sgd(**DECAY)),
    "momentum": (lambda params: torch.optim.SGD(params, momentum=0.9, **DECAY), pure.sgd(momentum=0.9, **DECAY)),
    "adamw": (lambda params: torch.optim.AdamW(params, **DECAY), pure.adamw(**DECAY)),
}


def shell_of(case: Case, kind: str) -> tuple[Shell, Any]:
    """Return a shell of a case, and its models."""
    models = built(case)
    return Shell(models, OPTIMIZERS[kind][0](leaves_of(models)), HOOKS), models


def moved(state: TrainState, case: Case, kind: str) -> tuple[Shell, Any]:
    """Return a shell that goes on from a pure state, and its models."""
    models = built(case)
    return pure.to_shell(state, models, OPTIMIZERS[kind][0](leaves_of(models)), hooks=HOOKS), models


def names(held: Any) -> set[tuple[str, str]]:
    """Return the places of tensors by model and name."""
    return {(model, name) for model, inside in held.items() for name in inside}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("name", ["batch norm", "tied", "several"])
def test_a_moved_run_goes_on_as_the_unmoved_one(name: str, kind: str, at: int) -> None:
    """From the shell to the pure engine and back, in mid-window too: bit by bit what a shell alone does."""
    case = CASES[name]
    straight, models = shell_of(case, kind)
    run = pure.train_step(pure.functional(built(case), loss_fn=case.loss), OPTIMIZERS[kind][1], HOOKS)
    for place in range(at):
        feed(straight, models, case, place)
    state = straight.to_pure()
    assert names(state.params) - names(state.grads) == case.unused
    for place in range(at, at + 3):
        feed(straight, models, case, place)
        state = run.step(state, batch(place))
        assert differing(straight, state) == []
    back, others = moved(state, case, kind)
    for place in range(at + 3, at + 6):
        feed(straight, models, case, place)
        feed(back, others, case, place)
    for leaf, other in zip(leaves_of(models), leaves_of(others), strict=True):
        assert torch.equal(leaf, other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_skipped_step_hides_nothing(kind: str) -> None:
    """A veto clears all gradients, and plain SGD keeps nothing: what has had a gradient before is still known."""
    shell, model = shell_of(CASES["plain"], kind)
    for factor in (1.0, 1.0, float("nan"), float("nan")):
        with shell.batch():
            shell.update(model(batch(0) * factor).square().mean())
    assert shell.state.clock.skipped == 1
    assert all(leaf.grad is None for leaf in model.parameters())
    state = shell.to_pure()
    assert names(state.params) - names(state.grads) == CASES["plain"].unused


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_is_known_right_after_a_move(kind: str) -> None:
    """A shell that has just been made from a pure state leaves out what that left out."""
    case = CASES["plain"]
    run = pure.train_step(pure.functional(built(case), loss_fn=case.loss), OPTIMIZERS[kind][1], HOOKS)
    params = pure.parameters(built(case))
    for state in (run.init(params, batch=batch(0)), run.step(run.init(params, batch=batch(0)), batch(0))):
        back = moved(state, case, kind)[0].to_pure()
        assert names(back.params) - names(back.grads) == case.unused
        assert back.owners == state.owners
    everything = moved(run.init(params), case, kind)[0].to_pure()
    assert names(everything.grads) == names(everything.params)


def test_before_the_first_micro_batch_nothing_is_known() -> None:
    """A shell that has seen no batch hands out a gradient of zeros for each parameter."""
    state = shell_of(CASES["plain"], "adamw")[0].to_pure()
    assert names(state.grads) == names(state.params)


def test_an_optimizer_whose_turn_has_not_come_keeps_its_parameters() -> None:
    """Two models trained in turns: what has only waited so far is not taken for unused."""
    models = {"a": nn.Linear(3, 1), "b": nn.Linear(3, 1)}
    optimizers = {key: torch.optim.SGD(model.parameters(), lr=0.1) for key, model in models.items()}
    shell = Shell(models, optimizers, [])
    with shell.batch():
        shell.update(models["a"](batch(0)).square().mean())
    state = shell.to_pure()
    assert names(state.grads) == names(state.params)


def test_what_an_optimizer_remembers_is_used() -> None:
    """A loaded optimizer that keeps an average of a parameter has had a gradient for it."""
    model = built(CASES["plain"])
    optimizer = torch.optim.AdamW(model.parameters())
    for leaf in model.layer.parameters():
        optimizer.state[leaf] = remembered(leaf)
    state = Shell(model, optimizer, HOOKS).to_pure()
    assert names(state.params) - names(state.grads) == CASES["plain"].unused


def remembered(leaf: Tensor) -> dict[str, Tensor]:
    """Return what AdamW keeps of a parameter."""
    zeros = torch.zeros_like(leaf)
    return {"step": torch.ones(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
