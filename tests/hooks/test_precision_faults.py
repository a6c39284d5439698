"""The rows C of the cases, c09 to c16: resuming, what is refused, autocast, and what hooks do to loss and gradients."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from functrain import Accumulate, MixedPrecision, Shell, Stage, hook
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import (
    STEP,
    Planned,
    half,
    looking,
    pair_applied,
    pair_shell,
    scaling,
    step_pair,
    vetoing,
    writing_gradient,
)

INF = float("inf")


def saved(shell: Shell) -> Any:
    """Return a state dict that went through a file that may hold tensors and numbers only."""
    file = io.BytesIO()
    torch.save(shell.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_c09_scale_and_growth_survive_a_resume() -> None:
    """(1024, 7) comes back in a new shell, and in the user's scaler."""
    first = sgd_shell(Weight(), MixedPrecision(precision="float16"))
    run(first, [INF] * 6 + [1.0] * 7)
    assert scaling(first) == (1024.0, 7)
    scaler = torch.amp.GradScaler("cpu")
    second = sgd_shell(Weight(), MixedPrecision(precision="float16"), scaler=scaler)
    second.load_state_dict(saved(first))
    assert scaling(second) == (1024.0, 7)
    assert scaler.get_scale() == 1024.0


@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu")])
def test_c10_float16_parameters_are_refused_at_setup(scaler: Any) -> None:
    """Loss scaling cannot unscale fp16 gradients: refused with the place, before anything runs."""
    with pytest.raises(ValueError, match=r'state\.params\["main"\]\["w"\] is float16'):
        sgd_shell(Weight(dtype=torch.float16), half(), scaler=scaler)


def test_c10_float16_that_nobody_trains_is_allowed() -> None:
    """A frozen fp16 table beside fp32 weights needs no unscaling."""
    model = nn.ModuleDict({"table": Weight(dtype=torch.float16).requires_grad_(requires_grad=False), "net": Weight()})
    shell = Shell(model["net"], SGD(model["net"].parameters(), lr=1.0), half())
    both = Shell(nn.Sequential(*model.values()), SGD(model["net"].parameters(), lr=1.0), half())
    step(shell, 1.0)
    assert (applied(shell), both.state.params["main"]["0.w"].dtype) == (1.0, torch.float16)


@pytest.mark.parametrize("own", [True, False])
def test_c11_one_overflow_costs_one_step(own: bool) -> None:
    """Gradients that fit at 32768 overflow once at 65536: 1 skip and 4 steps, in the user's scaler too."""
    scaler = torch.amp.GradScaler("cpu") if own else None
    shell = sgd_shell(Weight(), MixedPrecision(precision="float16"), lr=2.0**-112, scaler=scaler)
    run(shell, [2.0**112 * 1.5] * 5)
    assert (shell.state.clock.skipped, shell.state.clock.step, applied(shell)) == (1, 4, 6.0)
    assert scaling(shell) == (32768.0, 4)
    assert scaler is None or scaler.get_scale() == 32768.0


def broken_forward(shell: Shell, model: nn.Module, error: type[BaseException]) -> None:
    """Run a forward in low precision that raises."""
    with shell.batch():
        assert model(torch.ones(1, 4)).dtype is not torch.float32
        raise error


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("error", [Planned, KeyboardInterrupt])
def test_c12_autocast_ends_with_an_exception_in_the_forward(precision: str, error: type[BaseException]) -> None:
    """Afterwards a matmul outside is fp32, and no stale cast of the weight is used, inside or outside."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    shell = sgd_shell(model, MixedPrecision(precision=precision))
    with pytest.raises(error):
        broken_forward(shell, model, error)
    nn.init.constant_(model.weight, 5.0)
    outside = model(torch.ones(1, 4))
    assert (outside.dtype, outside.item(), torch.is_autocast_enabled("cpu")) == (torch.float32, 20.0, False)
    with shell.batch():
        assert model(torch.ones(1, 4)).item() == 20.0
        shell.update(model(torch.ones(1, 4)).float().sum() / 4)
    assert shell.state.clock.step == 1


def regularizer(priority: int) -> Any:
    """Return a hook that adds a loss whose gradient is 3."""

    def add(state: Any, _stage: Stage, _skip: Any) -> Any:
        return state, True, state.loss + 3.0 * state.params["main"]["w"]

    return hook(add, name="regularizer", stages=Stage.DO_BACKWARD, priority=priority)


@pytest.mark.parametrize("priority", [5, 15, 50])
@pytest.mark.parametrize("every", [1, 2])
def test_c13_a_regularizer_counts_in_full(priority: int, every: int) -> None:
    """Whatever its priority, what a hook adds to the loss is scaled and divided with it."""
    hooks = MixedPrecision(precision="float16") + Accumulate(every=every) + regularizer(priority)
    shell = sgd_shell(Weight(), hooks)
    run(shell, [1.0] * every)
    assert applied(shell) == 4.0


@pytest.mark.parametrize("priority", [20, 25, 35, 50])
def test_c14_what_a_later_hook_makes_infinite_is_vetoed(priority: int) -> None:
    """Finiteness is judged again after a hook that wrote gradients; the scale backs off and the veto is told."""
    heard: list[bool] = []
    look = looking(Stage.AFTER_OPTIMIZER_STEP, lambda state: heard.append(bool(state.stepped["main"])))
    shell = sgd_shell(Weight(), half() + writing_gradient(INF, {0}, priority=priority) + look)
    step(shell, 1.0)
    assert (applied(shell), scaling(shell), heard) == (0.0, (2.0, 0), [False])
    assert shell.state.veto(STEP, "precision") is True
    step(shell, 1.0)
    assert applied(shell) == 1.0


def test_c14_only_the_optimizer_concerned_skips() -> None:
    """A hook that spoils the gradients of one optimizer does not hold up the other."""
    shell = pair_shell(half() + writing_gradient(INF, {0}, model="a"))
    step_pair(shell, a=1.0, b=1.0)
    assert pair_applied(shell) == {"a": 0.0, "b": 1.0}
    assert dict(shell.state.stepped) == {"a": False, "b": True}


@pytest.mark.parametrize("hooks", [[], [half()]])
def test_c15_a_parameter_in_two_optimizers_is_refused(hooks: list[Any]) -> None:
    """It would be unscaled and stepped twice: refused at SETUP, naming the place and both optimizers."""
    model = Weight()
    optimizers = [SGD(model.parameters(), lr=1.0), SGD(model.parameters(), lr=1.0)]
    with pytest.raises(ValueError, match=r"'0' and '1' both hold state\.params\[\"main\"\]\[\"w\"\]"):
        Shell(model, optimizers, hooks)


def test_c16_a_vetoed_boundary_empties_the_window() -> None:
    """Gradients of a vetoed step are gone, so a BEFORE_BATCH veto has nothing to keep: only 3 counts."""
    kept = vetoing({1}, stage=Stage.BEFORE_BATCH, name="keep")
    shell = sgd_shell(Weight(), half() + vetoing({0}) + kept)
    run(shell, [5.0, 3.0])
    assert applied(shell) == 3.0


def test_c16_kept_gradients_of_a_step_get_the_scale_of_those_added() -> None:
    """After an executed step a BEFORE_BATCH veto keeps 5, to which 3 is added: 5 + 8."""
    kept = vetoing({1}, stage=Stage.BEFORE_BATCH, name="keep")
    shell = sgd_shell(Weight(), half() + kept)
    run(shell, [5.0, 3.0])
    assert applied(shell) == 13.0
