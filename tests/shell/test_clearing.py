"""Clearing gradients: what is left of them is what the state says."""

from __future__ import annotations

import torch
from torch import nn

from functrain import Shell


class Keeping(torch.optim.SGD):
    """An optimizer that clears nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Leave the gradients there."""


def two_steps(models: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer]) -> list[dict[str, list[str]]]:
    """Return which gradients the state had after clearing, in each of two batches; the second must clear something."""
    shell, seen = Shell(models, optimizers, []), []
    for _ in range(2):
        with shell.batch():
            seen.append({key: list(held) for key, held in shell.state.grads.items()})
            shell.update(sum((model(torch.ones(1, 1)).sum() for model in models.values()), torch.zeros(())))
    return seen


def linear() -> nn.Linear:
    """Return one weight."""
    return nn.Linear(1, 1, bias=False)


def test_an_optimizer_that_clears_in_its_own_way_does_not_keep_others_from_clearing() -> None:
    """Each is asked, and the state shows what the parameters still hold."""
    models = {"a": linear(), "b": linear()}
    optimizers = {"a": Keeping(models["a"].parameters(), 0.1), "b": torch.optim.SGD(models["b"].parameters(), 0.1)}
    assert two_steps(models, optimizers) == [{"a": [], "b": []}, {"a": ["weight"], "b": []}]
    assert models["a"].weight.grad.item() == 2.0
    assert models["b"].weight.grad.item() == 1.0


def test_a_gradient_of_a_frozen_parameter_that_nobody_holds_is_still_shown() -> None:
    """Nobody may clear it, and the state does not deny it."""
    models = {"a": linear(), "b": linear()}
    models["b"].weight.grad = torch.ones(1, 1)
    models["b"].requires_grad_(False)
    seen = two_steps(models, {"a": torch.optim.SGD(models["a"].parameters(), 0.1)})
    assert seen == [{"a": [], "b": ["weight"]}] * 2
