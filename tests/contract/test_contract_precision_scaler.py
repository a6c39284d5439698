"""The rows "Mixed precision" of the contract about a user's own loss scaler."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD

from functrain import Hook, MixedPrecision, Shell, fold
from tests.contract.toys import scalar, shell_of, train


def test_a_users_scaler_is_used_and_kept_in_step() -> None:
    """`Shell(scaler=s)` with this hook reads s at SETUP, and keeps it in step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    shell = shell_of(model := scalar(), MixedPrecision(precision="fp16"), scaler=scaler)
    assert shell.state.scaler["scale"] == 8.0
    train(shell, model, 1.0)
    assert (model.weight.item(), shell.state.scaler["scale"], scaler.get_scale()) == (-1.0, 16.0, 16.0)


def test_a_scaler_without_the_hook_is_refused() -> None:
    """A scaler without MixedPrecision is a ValueError that proposes it."""
    with pytest.raises(ValueError, match="MixedPrecision"):
        shell_of(scalar(), fold(), scaler=torch.amp.GradScaler("cpu"))


class Scaler(torch.amp.GradScaler):
    """A user's subclass."""


class Lookalike:
    """Has `step` and `update`, and is no scaler."""

    def step(self, optimizer: SGD) -> None:
        """Do nothing."""

    def update(self) -> None:
        """Do nothing."""


def test_scalers_are_told_by_type() -> None:
    """`torch.amp.GradScaler` and subclasses are taken; anything that only looks like one is a TypeError."""
    assert isinstance(shell_of(scalar(), MixedPrecision(precision="float16"), scaler=Scaler("cpu")), Shell)
    with pytest.raises(TypeError, match="Lookalike"):
        shell_of(scalar(), MixedPrecision(precision="float16"), scaler=Lookalike())


@pytest.mark.parametrize("hooks", [[], [MixedPrecision(precision="float16")]])
def test_a_disabled_scaler_acts_as_none(hooks: list[Hook]) -> None:
    """A disabled scaler is taken, with and without MixedPrecision, and changes nothing."""
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    models = [scalar(), scalar()]
    shells = [shell_of(model, hooks, scaler=s) for model, s in zip(models, (None, disabled), strict=True)]
    for shell, model in zip(shells, models, strict=True):
        train(shell, model, 2.0)
        assert model.weight.item() == -2.0
    assert shells[0].state.scaler == shells[1].state.scaler
