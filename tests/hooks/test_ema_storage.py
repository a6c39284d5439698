"""What an average keeps alive, and what it shares memory with: nothing but itself."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from functrain import EMA, Shell
from tests.scalars import Weight, sgd_shell, step


class Replacing(nn.Module):
    """A model whose forward puts another tensor in the place of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.0))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, slope: float) -> Tensor:
        """Return a loss whose gradient is the slope, and count the call."""
        self.seen = self.seen + 1.0
        return self.w * slope


@pytest.mark.parametrize("strict", [False, True])
def test_replaced_buffers_are_followed(strict: bool) -> None:
    """A buffer that the forward replaces is averaged as one written in place: 1, 1.5, 2.25."""
    shell = sgd_shell(Replacing(), EMA(decay=0.5), strict=strict)
    found = [step(shell, 1.0) or shell.averaged_module().seen.item() for _ in range(3)]
    assert found == [1.0, 1.5, 2.25]


def test_replaced_buffers_are_let_go() -> None:
    """Tensors that were replaced do not pile up behind the average."""
    shell = sgd_shell(model := Replacing(), EMA(decay=0.5))
    old = []
    for _ in range(20):
        step(shell, 1.0)
        old.append(weakref.ref(model.seen))
    gc.collect()
    assert sum(each() is not None for each in old) <= 2


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of nested mappings and modules."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, nn.Module):
        return [*tree.parameters(), *tree.buffers()]
    return [leaf for value in getattr(tree, "values", list)() for leaf in tensors(value)]


def addresses(tree: Any) -> set[int]:
    """Return where the tensors lie."""
    return {leaf.untyped_storage().data_ptr() for leaf in tensors(tree) if leaf.numel()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("strict", [False, True])
def test_storage_is_never_shared(dtype: torch.dtype, strict: bool) -> None:
    """Weights, gradients, average, handed-out module, snapshot and state dict: no two share memory."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(dtype)
    shell = sgd_shell(model, EMA(decay=0.5), strict=strict)
    for _ in range(2):
        with shell.batch():
            shell.update(model(torch.randn(4, 2, dtype=dtype)).sum())
    slot = shell.state.hooks["ema"]
    held = [model, slot, shell.averaged_module(), shell.snapshot().state.hooks, shell.snapshot().state.params]
    held += [
        shell.state_dict()["state"]["hooks"],
        shell.state_dict()["state"]["params"],
        shell.state_dict()["optimizers"],
    ]
    found = [addresses(each) for each in held]
    assert sum(map(len, found)) == len(set().union(*found))
    assert len(found[1]) == len(addresses(model))


def test_weights_that_move_are_followed() -> None:
    """After the model was cast, so that its weights lie elsewhere, the average goes on with the new ones."""
    shell: Shell = sgd_shell(model := Weight(), EMA(decay=0.5))
    step(shell, -1.0)
    model.double()
    found = [step(shell, -1.0) or shell.averaged_module().w.item() for _ in range(2)]
    assert (found, shell.averaged_module().w.dtype) == ([1.5, 2.25], torch.float64)


def test_many_small_weights_are_averaged_as_one_and_bitwise() -> None:
    """A shadow of many small tensors is packed from its first update on, and still is torch's average, to the bit."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(12)])
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), EMA(decay=0.9))
    for inputs in torch.randn(5, 4, 3):
        with shell.batch():
            shell.update(model(inputs).square().mean())
        average.update_parameters(model)
    shadow = shell.state.slot("ema")["shadow"]
    assert len({leaf.untyped_storage().data_ptr() for leaf in shadow.values()}) == 1
    expected = dict(average.module.named_parameters())
    assert all(torch.equal(leaf, expected[name]) for name, leaf in shadow.items())
    kept = shell.state_dict()
    shell.load_state_dict(kept)
    with shell.batch():
        shell.update(model(torch.ones(1, 3)).square().mean())
    average.update_parameters(model)
    again = shell.state.slot("ema")["shadow"]
    assert all(torch.equal(leaf, expected[name]) for name, leaf in again.items())


def test_a_shadow_that_looks_at_its_weights_is_not_packed() -> None:
    """Where each weight is looked at alone, tensors stay as they were made: a pinned one would lose its memory."""
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(12)])
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), EMA(decay=0.9, finite_only=True))
    places = [leaf.data_ptr() for leaf in shell.state.slot("ema")["shadow"].values()]
    with shell.batch():
        shell.update(model(torch.ones(1, 3)).square().mean())
    assert [leaf.data_ptr() for leaf in shell.state.slot("ema")["shadow"].values()] == places
