"""Sparse gradients, as ``nn.Embedding(sparse=True)`` makes them: rows that appear twice count as their sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from functrain import Accumulate, ClipNorm, MixedPrecision, Shell, SkipNonFinite, SkipSpikes

INDICES = torch.tensor([1, 2, 2])


def embedding() -> nn.Embedding:
    """Return ten rows of ones."""
    model = nn.Embedding(10, 3, sparse=True)
    with torch.no_grad():
        model.weight.fill_(1.0)
    return model


def trained(hooks: list[Any], factors: list[float]) -> tuple[Shell, nn.Embedding]:
    """Run one micro-batch per factor."""
    model = embedding()
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=1.0), hooks)
    for factor in factors:
        with shell.batch():
            shell.update(model(INDICES).float().sum() * factor)
    shell.flush()
    return shell, model


@pytest.mark.parametrize("strict", [False, True])
def test_the_norm_counts_a_row_that_appears_twice_as_its_sum(strict: bool) -> None:
    """Rows 1 and 2 have gradients 1 and 2 in each of three columns: the norm is the root of 15."""
    model = embedding()
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=1.0), ClipNorm(max_norm=1.0), strict=strict)
    with shell.batch():
        shell.update(model(INDICES).sum())
    assert shell.state.metrics["grad_norm"].item() == pytest.approx(15**0.5)
    assert (1.0 - model.weight).norm().item() == pytest.approx(1.0)


def test_windows_of_sparse_gradients_are_means() -> None:
    """Full and partial: K=2 of 2 and 4, then 5 alone."""
    _, model = trained([Accumulate(every=2)], [2.0, 4.0, 5.0])
    assert model.weight[:3, 0].tolist() == [1.0, -7.0, -15.0]


def test_a_nan_in_a_sparse_gradient_is_vetoed() -> None:
    """The weights stay, the next batch steps."""
    shell, model = trained([SkipNonFinite(drop=False), SkipSpikes(of="grad_norm")], [float("nan"), 1.0])
    assert (shell.state.clock.step, shell.state.clock.skipped) == (1, 1)
    assert model.weight[:3, 0].tolist() == [1.0, 0.0, -1.0]


def test_sparse_gradients_are_scaled_and_unscaled() -> None:
    """fp16: an overflow backs off, what follows is applied as in fp32."""
    hooks = [MixedPrecision(precision="fp16", init_scale=4.0), Accumulate(every=1)]
    shell, model = trained(hooks, [float("inf"), 1.0])
    assert (shell.state.scaler["scale"], shell.state.clock.skipped) == (2.0, 1)
    assert model.weight[:3, 0].tolist() == [1.0, 0.0, -1.0]
