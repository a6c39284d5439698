"""One weight, SGD with learning rate 1, and losses whose gradient is the number given: -w reads as what was applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from functrain import Shell


class Weight(nn.Module):
    """A model that is one parameter."""

    def __init__(self, start: float | list[float] = 0.0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=dtype))

    def forward(self, slope: Any) -> Tensor:
        """Return a loss whose gradient is the slope."""
        return (self.w * torch.as_tensor(slope, dtype=self.w.dtype)).sum()


def sgd_shell(model: nn.Module, hooks: Any, lr: float = 1.0, **options: Any) -> Shell:
    """Return a shell that applies gradients as they are."""
    return Shell(model, torch.optim.SGD(model.parameters(), lr=lr), hooks, **options)


def step(shell: Shell, slope: Any, weight: Any = None, last: bool = False, model: Any = None) -> None:
    """Run one micro-batch whose gradient is the slope."""
    module = model or shell._driver.applier.models.modules["main"]
    with shell.batch(last=last):
        shell.update(module(slope), weight)


def run(shell: Shell, slopes: Iterable[Any]) -> None:
    """Run micro-batches."""
    for slope in slopes:
        step(shell, slope)


def applied(shell: Shell) -> Any:
    """Return -w: the sum of the gradients that were applied."""
    return (-shell.state.params["main"]["w"]).tolist()
