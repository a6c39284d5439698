"""Averages beside torch's own AveragedModel, bitwise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from functrain import EMA, Shell
from tests.scripted import vetoing

COUNT = 10


class Tied(nn.Module):
    """A parameter under two names, and a frozen one before them."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        self.two.weight = self.one.weight
        self.register_buffer("table", torch.randn(3))
        self.register_buffer("hidden", torch.randn(2), persistent=False)


class Complex(nn.Module):
    """A complex parameter beside a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.register_buffer("phase", torch.randn(2, dtype=torch.complex128))
        self.r = nn.Parameter(torch.randn(()))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(3, 2),
    "normalized": lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Linear(4, 1, bias=False)),
    "mixed": lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double(), nn.BatchNorm1d(2).double()),
    "tied": Tied,
    "complex": Complex,
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "empty": lambda: nn.ParameterDict({"nothing": torch.empty(0, 2), "some": torch.randn(2)}),
}
decays = st.sampled_from([0.0, 0.5, 0.9, 0.999]) | st.floats(0.0, 1.0, exclude_max=True)
batches = st.frozensets(st.integers(0, COUNT - 1))


def push(shell: Shell, model: nn.Module) -> None:
    """Run one micro-batch that moves every trained parameter, and buffers as a forward would."""
    with shell.batch():
        for held in model.buffers():
            held.add_(torch.ones_like(held))
        trained = [leaf for leaf in model.parameters() if leaf.requires_grad]
        shell.update(sum((leaf.abs().square().sum().double() for leaf in trained), torch.zeros(())))


def training(model: nn.Module, hooks: Any, **options: Any) -> Shell:
    """Return a shell that trains what is not frozen."""
    trained = [leaf for leaf in model.parameters() if leaf.requires_grad]
    return Shell(model, torch.optim.SGD(trained, lr=0.05, momentum=0.9), hooks, **options)


def floats(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, without integers."""
    found = [*module.named_parameters(), *module.named_buffers()]
    return {name: held for name, held in found if held.is_floating_point() or held.is_complex()}


def integers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of integer buffers by name: torch truncates their average, functrain copies the source."""
    return {
        name: held.clone()
        for name, held in module.named_buffers()
        if not held.dtype.is_floating_point and not held.is_complex()
    }


@given(
    kind=st.sampled_from(sorted(MODELS)),
    decay=decays,
    every=st.integers(1, 3),
    start=st.integers(0, 4),
    use_buffers=st.booleans(),
    vetoed=batches,
    strict=st.booleans(),
)
def test_bitwise_averaged_model(
    kind: str, decay: float, every: int, start: int, use_buffers: bool, vetoed: frozenset[int], strict: bool
) -> None:
    """Any model, decay and pattern of steps: parameters and float buffers are those of AveragedModel."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    oracle = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=use_buffers)
    hooks = EMA(decay=decay, update_every=every, start_step=start, use_buffers=use_buffers) + vetoing(vetoed)
    shell, steps, whole = training(model, hooks, strict=strict), 0, {}
    for batch in range(COUNT):
        push(shell, model)
        steps += batch not in vetoed
        if batch not in vetoed and steps >= start and steps % every == 0:
            oracle.update_parameters(model)
            whole = integers(model)
    assert shell.state.hooks["ema"]["n_averaged"] == oracle.n_averaged.item()
    if oracle.n_averaged:
        assert_equal(floats(shell.averaged_module()), floats(oracle.module))
        assert_equal(integers(shell.averaged_module()), whole)


def assert_equal(found: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Compare bitwise, by name."""
    assert found.keys() == right.keys()
    assert all(torch.equal(found[name], right[name]) for name in found)


@given(dtype=st.sampled_from([torch.bfloat16, torch.float16]), decay=decays, strict=st.booleans())
def test_low_precision_is_averaged_as_its_float32_twin(dtype: torch.dtype, decay: float, strict: bool) -> None:
    """Over bf16 and fp16 the shadow is what AveragedModel keeps of the same weights in float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3)).to(dtype)
    twin = copy.deepcopy(model).float()
    oracle = AveragedModel(twin, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    shell = training(model, EMA(decay=decay), strict=strict)
    for _ in range(COUNT):
        push(shell, model)
        twin.load_state_dict(model.state_dict())
        oracle.update_parameters(twin)
    slot = shell.state.hooks["ema"]
    for name, held in floats(oracle.module).items():
        assert torch.equal({**slot["shadow"], **slot["buffers"]}[name], held)
        assert torch.equal(floats(shell.averaged_module())[name], held.to(dtype))


@pytest.mark.parametrize("strict", [False, True])
def test_several_averages_do_not_disturb_each_other(strict: bool) -> None:
    """Two decays over one model: each is the average it would be alone."""
    torch.manual_seed(0)
    model = MODELS["normalized"]()
    hooks = [EMA(decay=0.5, name="fast"), EMA(decay=0.99, name="slow", update_every=2)]
    oracles = {
        each.name: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(each.decay), use_buffers=True)
        for each in hooks
    }
    shell = training(model, hooks, strict=strict)
    for batch in range(COUNT):
        push(shell, model)
        oracles["fast"].update_parameters(model)
        if batch % 2:
            oracles["slow"].update_parameters(model)
    for name, oracle in oracles.items():
        assert_equal(floats(shell.averaged_module(name)), floats(oracle.module))
