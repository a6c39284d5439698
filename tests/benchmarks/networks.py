"""The networks that updates and averages are measured on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


class Network(NamedTuple):
    """A network and what it is trained on."""

    title: str
    build: Callable[[], nn.Module]
    batch: Batch


def mlp() -> nn.Module:
    """Return three linear layers of width 64."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def perceptron(width: int, depth: int) -> nn.Module:
    """Return a perceptron of 64 inputs, so many hidden layers and 10 outputs."""
    torch.manual_seed(0)
    sizes = [64, *[width] * depth]
    hidden = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


class Many(nn.Module):
    """Tensors of one size in a flat list, which is quick to walk: that favours whoever walks a model at each update."""

    def __init__(self, count: int, size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        made = (0.01 * torch.randn(size, generator=generator) for _ in range(count))
        self.parts = nn.ParameterList([nn.Parameter(each.to(dtype)) for each in made])

    def forward(self, x: Tensor) -> Tensor:
        """Return one number per tensor."""
        return torch.stack([(part * x).sum() for part in self.parts])


def convolutional() -> nn.Module:
    """Return two convolutions and a linear layer, as one would train on 8x8 digits."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def batch_of(*shape: int) -> Batch:
    """Return inputs of a shape and classes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator), torch.randint(0, 10, shape[:1], generator=generator)


NETWORKS = {
    "mlp": Network("MLP 3x64, batch 128", mlp, batch_of(128, 64)),
    "conv": Network("two convolutions on 8x8, batch 32", convolutional, batch_of(32, 1, 8, 8)),
}
