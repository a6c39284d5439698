"""A run that came from elsewhere shows the learning rate that it goes on with, before the first batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import functrain
from functrain import ClipNorm, Shell, pure


def shell_of(lr: float) -> Shell:
    """Return a shell with a learning rate."""
    model = nn.Linear(1, 1)
    return Shell(model, torch.optim.SGD(model.parameters(), lr=lr), ClipNorm(max_norm=1.0))


def by_state_dict(shell: Shell, _folder: Path) -> Shell:
    """Move by a state dict."""
    (other := shell_of(0.1)).load_state_dict(shell.state_dict())
    return other


def by_disk(shell: Shell, folder: Path) -> Shell:
    """Move by a checkpoint."""
    (other := shell_of(0.1)).load(functrain.save(folder / "one", shell))
    return other


def by_pure(shell: Shell, _folder: Path) -> Shell:
    """Move by the pure engine's form."""
    model = nn.Linear(1, 1)
    return pure.to_shell(shell.to_pure(), model, torch.optim.SGD(model.parameters(), lr=0.1), hooks=shell.pipeline)


@pytest.mark.parametrize("moved", [by_state_dict, by_disk, by_pure])
def test_a_moved_run_shows_its_learning_rate(moved: Callable[[Shell, Path], Shell], tmp_path: Path) -> None:
    """The state says what the optimizer holds, and not what the optimizer held before."""
    assert moved(shell_of(0.5), tmp_path).state.hyper["main"]["0"]["lr"] == 0.5
