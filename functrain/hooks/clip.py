"""Gradient clipping by a fixed limit."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from functrain._gradients import limited, measured, replaced, total_norm
from functrain._hook import Hook, Name, Names, Outcome, Stages, Writes
from functrain._select import Flag, beside
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap

Limit = Annotated[float, Field(ge=0)]
"""A limit: NaN and negative numbers are refused, infinity only measures."""


class ClipNorm(Hook):
    """Scale all gradients by one factor so that their global norm is at most ``max_norm``.

        g <- g * min(1, max_norm / (norm + 1e-6))

    One norm over all models and optimizers, bitwise that of ``torch.nn.utils.clip_grad_norm_``; optimizers that
    overflowed do not count. A non-finite norm leaves the gradients untouched: vetoing is the skip hooks' part.

    Stages: DO_OPTIMIZER_STEP. Writes ``grads``. Publishes the norm before clipping as ``grad_norm``, and
    ``grad_limit``. Never vetoes.
    Source: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063.

    Attributes:
        max_norm: limit, at least 0; infinity only measures. In the slot as ``max_norm``.
        norm_type: order of the norm; infinity for the largest magnitude.

    >>> ClipNorm(max_norm=1.0).name
    'clip'

    See also: :class:`ClipValue` (each element), :class:`ClipAdaptive` (each unit relative to its weight).
    """

    max_norm: Limit
    norm_type: Annotated[float, Field(gt=0)] = 2.0
    priority: int = 30
    name: Name = "clip"
    stages: Stages = frozenset({Stage.DO_OPTIMIZER_STEP})
    writes: Writes = frozenset({"grads"})
    publishes: Names = frozenset({"grad_norm", "grad_limit"})

    @property
    def keeps_finite(self) -> bool:
        """Clipping only makes gradients smaller."""
        return True

    def init(self, state: TrainState) -> Any:  # noqa: ARG002 - needs nothing of it
        """Lift the limit into the slot."""
        return FrozenMap({"max_norm": self.max_norm})

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - claims one stage
        """Measure, publish, scale."""
        if will_skip is True:
            return Outcome(state, True, state.loss)
        norm, limit = total_norm(state, self.norm_type), state.hooks[self.name]["max_norm"]
        state = limited(state, norm, limit, will_skip)
        return Outcome(measured(state, norm, limit, will_skip), True, state.loss)


class ClipValue(Hook):
    """Clamp every finite gradient element to ``[-clip_value, clip_value]``.

    What is not finite stays so: a clamped infinity would pass for a gradient, and vetoing is the skip hooks' part.

    Stages: DO_OPTIMIZER_STEP. Writes ``grads``. Never vetoes. Where all is finite it equals
    ``torch.nn.utils.clip_grad_value_``.

    Attributes:
        clip_value: limit, at least 0. In the slot as ``clip_value``.

    >>> ClipValue(clip_value=0.5).name
    'clip_value'

    See also: :class:`ClipNorm`, which keeps the direction.
    """

    clip_value: Limit
    priority: int = 30
    name: Name = "clip_value"
    stages: Stages = frozenset({Stage.DO_OPTIMIZER_STEP})
    writes: Writes = frozenset({"grads"})

    @property
    def keeps_finite(self) -> bool:
        """Clipping only makes gradients smaller."""
        return True

    def init(self, state: TrainState) -> Any:
        """Lift the limit into the slot.

        Raises:
            ValueError: a complex parameter, whose gradient has no order to clamp by.
        """
        for model, held in state.params.items():
            for name, leaf in held.items():
                if leaf.is_complex():
                    raise ValueError(_no_order(self, model, name))
        return FrozenMap({"clip_value": self.clip_value})

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - claims one stage
        """Clamp."""
        if will_skip is True:
            return Outcome(state, True, state.loss)
        limit = state.hooks[self.name]["clip_value"]
        return Outcome(replaced(state, lambda _m, _n, grad: _clamped(grad, limit), will_skip), True, state.loss)


def _clamped(grad: Tensor, limit: Any) -> Tensor:
    """Return a gradient clamped on both sides, by a limit of its own dtype: one that this cannot hold is infinite."""
    bound = limit if isinstance(limit, Tensor) else torch.tensor(limit, dtype=grad.dtype, device="cpu").item()
    return torch.where(grad.isfinite(), torch.clamp(grad, -beside(bound, grad), beside(bound, grad)), grad)


def _no_order(hook: ClipValue, model: str, name: str) -> str:
    return (
        f'{hook.name!r} cannot clamp complex gradients: state.params["{model}"]["{name}"] is complex, '
        "and complex numbers have no order; use ClipNorm, which clips by magnitude"
    )
