"""Adaptive gradient clipping: each unit relative to the norm of its own weights."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from functrain import _foreach
from functrain._foreach import scaled
from functrain._gradients import replaced
from functrain._hook import Hook, Name, Outcome, Stages, Writes
from functrain._select import Flag, Number, beside
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ClipAdaptive(Hook):
    """Limit the gradient norm of every unit to ``clip`` times the norm of its weights (AGC).

        g_i <- g_i * clip * max(|w_i|, eps) / |g_i|   where |g_i| > clip * max(|w_i|, eps)

    A unit is a row of a matrix, a filter of a convolution, or a whole vector. A non-finite unit stays as it is.

    Stages: DO_OPTIMIZER_STEP. Writes ``grads``. Never vetoes.
    Source: Brock et al. 2021, https://arxiv.org/abs/2102.06171, equation 3.

    Attributes:
        clip: ratio. In the slot as ``clip``.
        eps: what stands for the norm of weights that are almost zero.

    >>> ClipAdaptive().clip
    0.01

    See also: :class:`functrain.on`, to leave the output layer out, as the paper does.
    """

    clip: Positive = 0.01
    eps: Positive = 1e-3
    priority: int = 30
    name: Name = "clip_adaptive"
    stages: Stages = frozenset({Stage.DO_OPTIMIZER_STEP})
    writes: Writes = frozenset({"grads"})

    @property
    def keeps_finite(self) -> bool:
        """Clipping only makes gradients smaller."""
        return True

    def init(self, state: TrainState) -> Any:  # noqa: ARG002 - needs nothing of it
        """Lift ratio and eps into the slot."""
        return FrozenMap({"clip": self.clip, "eps": self.eps})

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - claims one stage
        """Clip unit by unit."""
        if will_skip is True:
            return Outcome(state, True, state.loss)
        slot = state.hooks[self.name]

        def clipped(model: str, name: str, grad: Tensor) -> Tensor:
            return unit_clipped(grad, state.params[model][name], slot["clip"], slot["eps"])

        return Outcome(replaced(state, clipped, will_skip), True, state.loss)


def unit_norm(tensor: Tensor) -> Tensor:
    """Return the norm of each unit, of a shape that broadcasts against the tensor.

    >>> unit_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5.],
            [1.]])
    """
    dims = tuple(range(1, tensor.ndim)) or None
    return _foreach.norm(tensor, 2.0, dim=dims, keepdim=True)


def unit_clipped(grad: Tensor, weight: Tensor, clip: Number, eps: Number) -> Tensor:
    """Return a gradient whose units are at most ``clip * max(|w|, eps)`` long."""
    norm = unit_norm(grad)
    limit = scaled(unit_norm(weight).clamp(min=beside(eps, norm)), clip)
    too_long = (norm > limit) & norm.isfinite()
    # Divide by one where nothing is clipped: a division by a zero norm would leave NaN in gradients of this function.
    # Divide first: a limit over a large norm may be too small a number for the dtype to hold with all its digits.
    return torch.where(too_long, grad / torch.where(too_long, norm, 1.0) * limit, grad)
