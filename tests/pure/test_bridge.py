"""Bridges: a running training moves to the other interpreter and back, bitwise, optimizer state included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from functrain import EMA, Accumulate, ClipZScore, MixedPrecision, Shell, SkipNonFinite, _tree, pure
from tests.pure.spare import one

HOOKS = (
    Accumulate(every=3),
    MixedPrecision(precision="float16", init_scale=8.0),
    ClipZScore(warmup=2),
    SkipNonFinite(),
    EMA(decay=0.9),
)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.1, betas=(0.8, 0.9)),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.1, amsgrad=True),
}


def network() -> nn.Module:
    """Return a model with buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def batch(place: int) -> Tensor:
    """Return a batch."""
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(place))


def train(shell: Shell, model: nn.Module, places: range) -> None:
    """Run micro-batches."""
    for place in places:
        with shell.batch():
            shell.update(model(batch(place)).square().mean())


def shell_of(model: nn.Module, kind: str) -> Shell:
    """Return a shell with a scheduler and a scaler of the user."""
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
    return Shell(model, optimizer, HOOKS, scheduler, torch.amp.GradScaler("cpu", init_scale=8.0))


def moved(shell: Shell, kind: str) -> tuple[Shell, nn.Module]:
    """Take a shell's run through the pure form into new objects."""
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    return pure.to_shell(shell.to_pure(), model, optimizer, scheduler, scaler, hooks=HOOKS), model


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
def test_there_and_back_goes_on_bitwise(kind: str, at: int) -> None:
    """Moved at any micro-batch, in mid-window too, the run ends where the unmoved one ends: weights, average, rate."""
    straight, model = shell_of(first := network(), kind), first
    train(straight, model, range(14))
    shell = shell_of(second := network(), kind)
    train(shell, second, range(at))
    shell, second = moved(shell, kind)
    train(shell, second, range(at, 14))
    for name, value in model.state_dict().items():
        assert torch.equal(second.state_dict()[name], value), name
    for name in ("scaler", "clock"):
        assert repr(getattr(shell.state, name)) == repr(getattr(straight.state, name))
    assert shell.state.hyper["main"]["0"]["lr"] == straight.state.hyper["main"]["0"]["lr"]
    ours, theirs = shell.averaged_module("ema"), straight.averaged_module("ema")
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_to_pure_hands_out_copies() -> None:
    """Training on after a move leaves the moved state as it was."""
    shell = shell_of(model := network(), "momentum")
    train(shell, model, range(4))
    state = shell.to_pure()
    before = {name: leaf.clone() for name, leaf in state.params["main"].items()}
    train(shell, model, range(4, 10))
    assert all(torch.equal(state.params["main"][name], leaf) for name, leaf in before.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_moved_state_is_built_like_a_first_one(dtype: torch.dtype) -> None:
    """Before and after a micro-batch a shell hands out the dtypes of ``init``: no step has to compile again."""
    model = nn.Linear(3, 1, dtype=dtype)
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), [EMA(), SkipNonFinite()])
    run = pure.train_step(pure.functional(model, loss_fn=one), pure.sgd(0.1, momentum=0.9), shell.pipeline)
    wanted = {path: leaf.dtype for path, leaf in _tree.paths(run.init(pure.parameters(model))).items()}
    for place in range(2):
        assert {path: leaf.dtype for path, leaf in _tree.paths(shell.to_pure()).items()} == wanted
        with shell.batch():
            shell.update(one(model, batch(place).to(dtype)))


def test_other_optimizers_are_refused() -> None:
    """An optimizer without a pure counterpart, or groups that differ, are refused with the reason."""
    model = network()
    shell = Shell(model, torch.optim.RMSprop(model.parameters(), lr=0.1), EMA())
    with pytest.raises(ValueError, match="RMSprop; SGD, Adam and AdamW have pure counterparts"):
        shell.to_pure()
    groups = [{"params": [leaf], "lr": 0.1 * (place + 1)} for place, leaf in enumerate(model.parameters())]
    shell = Shell(model, torch.optim.SGD(groups, lr=0.1), EMA())
    with pytest.raises(ValueError, match="differ in their numbers"):
        shell.to_pure()
