"""The two networks that updates are measured on, each with a batch."""

from __future__ import annotations

from collections.abc import Callable
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
