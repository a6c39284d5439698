"""Parameters that come, go and change while a shell runs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from functrain import ClipNorm, Shell, SkipNonFinite


def unfrozen() -> tuple[nn.Sequential, torch.optim.Optimizer, Shell]:
    """Return a network whose first layer joined the optimizer after the shell was made."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    shell = Shell(model, optimizer, [ClipNorm(max_norm=1e9), SkipNonFinite()])
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1.0})
    return model, optimizer, shell


def test_no_nan_reaches_a_parameter_that_joined_the_optimizer_later() -> None:
    """Gradual unfreezing: the finite check looks at what ``add_param_group`` has added."""
    model, _, shell = unfrozen()
    with shell.batch():
        shell.update(model(torch.ones(1, 2)).sum() + (model[0].weight * 0).sum().sqrt())
    assert (shell.state.clock.step, shell.state.clock.skipped) == (0, 1)
    assert model[0].weight.isfinite().all()


def test_the_norm_counts_a_parameter_that_joined_the_optimizer_later() -> None:
    """The published norm is that of ``clip_grad_norm_`` over all that the optimizer holds now."""
    model, _, shell = unfrozen()
    twin = copy.deepcopy(model)
    twin(torch.ones(1, 2)).sum().backward()
    expected = torch.nn.utils.get_total_norm([each.grad for each in twin.parameters() if each.grad is not None])
    with shell.batch():
        shell.update(model(torch.ones(1, 2)).sum())
    assert torch.equal(shell.state.metrics["grad_norm"], expected)


def test_a_copy_of_a_shell_follows_its_own_optimizer() -> None:
    """``deepcopy`` gives parameters other addresses; who holds what is found out anew all the same."""
    _, optimizer, shell = unfrozen()
    twin = copy.deepcopy(shell)
    with twin.batch():
        pass
    assert len(twin.state.owners.table["main"]) == 4
    assert len(optimizer.param_groups) == 2


def test_a_stranger_that_joins_the_optimizer_is_refused() -> None:
    """A parameter of no model could not be seen by any hook, later as at SETUP."""
    _, optimizer, shell = unfrozen()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    for _ in range(2):
        with pytest.raises(ValueError, match="belongs to none of the models"):
            shell.batch().__enter__()


def test_gradients_of_a_thawed_parameter_that_no_optimizer_holds_do_not_pile_up() -> None:
    """What was frozen at SETUP and is trainable now is cleared at every window, too."""
    model = nn.Sequential(nn.Linear(1, 1).requires_grad_(requires_grad=False), nn.Linear(1, 1))
    shell = Shell(model, torch.optim.SGD(model[1].parameters(), lr=0.0), [])
    model.requires_grad_(requires_grad=True)
    found = []
    for _ in range(2):
        with shell.batch():
            shell.update(model(torch.ones(1, 1)).sum())
        found.append(model[0].bias.grad.item())
    assert found[0] == found[1]
