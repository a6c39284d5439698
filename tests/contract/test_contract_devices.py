"""The row "EMA, devices" of the contract, on a machine with two kinds of device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from functrain import EMA
from tests.contract.toys import scalar, shell_of, train

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_devices_follow_the_source_tensor_by_tensor() -> None:
    """A table on the CPU beside weights on a GPU stays there, in the shadow and in what is handed out."""
    model = nn.Sequential(scalar().cuda(), scalar())
    shell = shell_of(model, EMA(decay=0.5))
    for _ in range(2):
        with shell.batch():
            shell.update(model[0].weight.sum().cpu() + model[1].weight.sum())
    module = shell.averaged_module("ema")
    assert [p.device.type for p in module.parameters()] == ["cuda", "cpu"]
    assert [p.item() for p in module.parameters()] == [-1.5, -1.5]


def test_a_model_that_moves_is_followed() -> None:
    """After the model moved to a GPU averaging goes on, and what is handed out is there too."""
    train(shell := shell_of(model := scalar(), EMA(decay=0.5)), model, 1.0)
    model.cuda()
    train(shell, model, 1.0)
    module = shell.averaged_module("ema")
    assert (module.weight.device.type, module.weight.item()) == ("cuda", -1.5)
