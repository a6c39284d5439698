"""The model: three small convolutions with BatchNorm, so that buffers matter as well as parameters."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Return a 3x3 convolution, normalised and rectified."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def network(width: int = 16) -> nn.Sequential:
    """Return a new network from images of 8x8 to ten classes.

    >>> sum(weight.numel() for weight in network().parameters())
    15418
    """
    layers: dict[str, nn.Module] = {
        "edges": convolution(1, width),
        "strokes": convolution(width, 2 * width),
        "halve": nn.MaxPool2d(2),
        "shapes": convolution(2 * width, 2 * width),
        "quarters": nn.AdaptiveAvgPool2d(2),
        "flat": nn.Flatten(),
        "digit": nn.Linear(8 * width, 10),
    }
    return nn.Sequential(OrderedDict(layers))
