"""A gate in front of the loss: forward the identity, backward zeroes what is not finite."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


class _Gate(torch.autograd.Function):
    """Identity whose cotangents are made finite: 0 * nan is nan, so a mask after the fact comes too late."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Tensor:  # noqa: ARG004 - as torch calls it
        (cotangent,) = cotangents
        return torch.where(cotangent.isfinite(), cotangent, torch.zeros_like(cotangent))


def gated(x: Tensor) -> Tensor:
    """Return ``x``; a gradient that comes back through it is zero where it is not finite.

    >>> x = torch.ones(1, requires_grad=True)
    >>> (gated(x) * float("nan")).sum().backward(); x.grad
    tensor([0.])
    """
    return cast("Tensor", _Gate.apply(x))
