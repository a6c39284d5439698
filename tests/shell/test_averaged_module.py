"""`shell.averaged_module()`: a module of its own with the averaged weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DataParallel

from functrain import EMA, Accumulate, MixedPrecision, Shell
from tests.scalars import Weight, sgd_shell

Wrap = Callable[[nn.Module], nn.Module]


def network() -> nn.Module:
    """Return a model with buffers, which no forward writes, and a child in a child."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Sequential(nn.ReLU(), nn.Linear(4, 1)))


def compiled(module: nn.Module) -> nn.Module:
    """Return a module that would be compiled, without a compiler."""
    return torch.compile(module, backend="eager")  # type: ignore[return-value]


def trained(model: nn.Module, steps: int = 3, hooks: Any = None, dtype: torch.dtype = torch.float32) -> Shell:
    """Train a few steps under an average."""
    shell = sgd_shell(model, [EMA(decay=0.5), *(hooks or [])], lr=0.1)
    for place in range(steps):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(place)).to(dtype)
        with shell.batch():
            shell.update(model(x).float().square().mean())
    return shell


PLAIN = sorted(network().state_dict())
WRAPS: dict[str, Wrap] = {
    "compile": compiled,
    "checkpoint": checkpoint_wrapper,
    "parallel": DataParallel,
    "parallel over compile": lambda module: DataParallel(compiled(module)),
    "checkpoint over compile": lambda module: checkpoint_wrapper(compiled(module)),
}


def names(module: nn.Module) -> list[str]:
    """Return the names of parameters and buffers."""
    return sorted(name for name, _ in [*module.named_parameters(), *module.named_buffers()])


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_wrapped_model_gets_plain_names(wrap: str) -> None:
    """State, average, handed-out module and its state dict: plain names, values as without the wrapper."""
    plain, wrapped = trained(network()), trained(WRAPS[wrap](network()))
    state, slot = wrapped.state, wrapped.state.hooks["ema"]
    assert sorted([*state.params["main"], *state.buffers["main"]]) == PLAIN
    assert sorted([*slot["shadow"], *slot["buffers"]]) == PLAIN
    found, right = wrapped.averaged_module(), plain.averaged_module()
    assert names(found) == sorted(found.state_dict()) == PLAIN
    assert all(torch.equal(held, right.state_dict()[name]) for name, held in found.state_dict().items())
    network().load_state_dict(found.state_dict(), strict=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of dynamo's own looking at a non-leaf
@pytest.mark.parametrize("wrap", WRAPS)
def test_wrapped_children_get_plain_names_too(wrap: str) -> None:
    """Wrappers around parts of a model, one inside the other, leave no trace in what is handed out."""
    model = network()
    model[2][1] = WRAPS[wrap](model[2][1])
    model[2] = WRAPS[wrap](model[2])
    model[0] = WRAPS[wrap](model[0])
    shell, right = trained(model), trained(network()).averaged_module()
    found = shell.averaged_module()
    assert names(found) == sorted(found.state_dict()) == PLAIN
    assert all(torch.equal(held, right.state_dict()[name]) for name, held in found.state_dict().items())
    assert isinstance(model[0], type(WRAPS[wrap](nn.Linear(1, 1))))


@pytest.mark.parametrize("wrap", WRAPS)
def test_averages_are_shown_through_wrappers(wrap: str) -> None:
    """What a wrapped model computes inside averaged() is what the handed-out module computes."""
    shell = trained(model := WRAPS[wrap](network()))
    x = torch.ones(2, 3)
    raw, averaged = model.eval()(x), shell.averaged_module().eval()(x)
    with shell.averaged():
        assert torch.equal(model(x), averaged)
    assert torch.equal(model(x), raw)
    assert not torch.equal(raw, averaged)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes_are_those_of_the_model(dtype: torch.dtype) -> None:
    """A bf16 model hands out bf16 averages, rounded once from the float32 average."""
    found = trained(network().to(dtype), dtype=dtype).averaged_module()
    assert {held.dtype for held in found.state_dict().values()} == {dtype, torch.int64}
    fresh = network().to(dtype)
    fresh.load_state_dict(found.state_dict(), strict=True)
    assert torch.equal(fresh.eval()(torch.ones(1, 3, dtype=dtype)), found.eval()(torch.ones(1, 3, dtype=dtype)))


def test_it_can_be_called_under_the_precision_of_the_run() -> None:
    """Under bf16 autocast the weights stay float32, and the module may be used inside and outside of it."""
    shell = trained(network(), hooks=[MixedPrecision(precision="bf16"), Accumulate(every=1)])
    found = shell.averaged_module().eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert found(torch.ones(1, 3)).dtype is torch.bfloat16
    assert found(torch.ones(1, 3)).dtype is torch.float32


def test_it_is_one_object_refreshed_and_untrained() -> None:
    """The same object at each call, with the averages of the call; no gradient, no part of the model in it."""
    shell = trained(model := network())
    first = shell.averaged_module()
    before = copy.deepcopy(first.state_dict())
    with shell.batch():
        shell.update(model(torch.randn(4, 3)).square().mean())
    assert torch.equal(first[0].weight, before["0.weight"])
    assert shell.averaged_module() is first
    assert not torch.equal(first[0].weight, before["0.weight"])
    assert not any(leaf.requires_grad for leaf in first.parameters())
    assert not {id(part) for part in model.modules()} & {id(part) for part in first.modules()}


@pytest.mark.parametrize("inside", [True, False])
def test_it_does_not_mind_averaged(inside: bool) -> None:
    """Made or refreshed while the model holds an average: the values are the same."""
    shell = trained(network())
    right = copy.deepcopy(trained(network()).averaged_module().state_dict())
    if not inside:
        shell.averaged_module()
    with shell.averaged():
        found = shell.averaged_module().state_dict()
    assert all(torch.equal(held, right[name]) for name, held in found.items())


class Repairing(nn.Module):
    """A model that needs a repair after it was copied."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.0))
        self.seen: list[tuple[float, bool]] = []

    def modify_ema_methods(self) -> None:
        """Note the weight, and whether it is trained, at the time of the call."""
        self.seen.append((self.w.item(), self.w.requires_grad))

    def forward(self, x: Tensor) -> Tensor:
        """Return something to train on."""
        return self.w * x.sum()


@pytest.mark.parametrize("factory", [None, Repairing])
@pytest.mark.parametrize("wrap", [lambda module: module, compiled, DataParallel])
def test_modify_ema_methods_is_called_once_on_what_is_handed_out(factory: Any, wrap: Wrap) -> None:
    """Once, after the copy or the factory, before weights are loaded, on the module under any wrapper."""
    shell = trained(wrap(model := Repairing()))
    made = [shell.averaged_module("ema", factory) for _ in range(3)]
    assert (made[0] is made[2], model.seen) == (True, [])
    assert made[0].seen == [(0.0 if factory else model.w.item(), False)]
    assert made[0].w.item() == pytest.approx(shell.state.hooks["ema"]["shadow"]["w"].item())


@given(
    kind=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), grad=st.booleans(), eval_mode=st.booleans()
)
def test_a_factory_may_make_it_any_way(kind: torch.dtype, grad: bool, eval_mode: bool) -> None:
    """Whatever dtype and mode a factory gives: dtype of the source, no gradients, the factory's mode, once."""
    calls = []

    def factory() -> nn.Module:
        calls.append(network().to(kind).requires_grad_(grad).train(not eval_mode))
        return calls[-1]

    shell, right = trained(network()), trained(network()).averaged_module().state_dict()
    found = shell.averaged_module("ema", factory)
    assert shell.averaged_module("ema", factory) is found is calls[0]
    assert all(torch.equal(held, right[name]) for name, held in found.state_dict().items())
    assert (len(calls), found.training) == (1, not eval_mode)
    assert not any(leaf.requires_grad for leaf in found.parameters())


def test_a_factory_of_another_model_is_refused() -> None:
    """A module with other names or shapes is a ValueError that names them, and is not kept."""
    shell = trained(network())
    with pytest.raises(ValueError, match=r"module_factory.*'w'"):
        shell.averaged_module("ema", Weight)
    other = network()
    other[2][1] = nn.Linear(4, 2)
    with pytest.raises(ValueError, match=r"2\.1\.weight"):
        shell.averaged_module("ema", lambda: other)
    assert names(shell.averaged_module()) == PLAIN


def old_norm(module: nn.Module) -> nn.Module:
    """Return the old weight norm, which warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module)


@pytest.mark.parametrize("normed", [old_norm, nn.utils.parametrizations.weight_norm])
def test_normalized_layers_load_strictly(normed: Wrap) -> None:
    """Of weight norm, old and new, the averaged parts are handed out under their own names."""
    model = nn.Sequential(normed(nn.Linear(3, 2)))
    found = trained(model).averaged_module()
    fresh = nn.Sequential(normed(nn.Linear(3, 2)))
    fresh.load_state_dict(found.state_dict(), strict=True)
    assert torch.equal(fresh(torch.ones(1, 3)), found(torch.ones(1, 3)))
