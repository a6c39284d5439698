"""Stochastic gradient descent, as ``torch.optim.SGD`` rounds it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from functrain import _tree
from functrain._select import Flag, Number, select
from functrain._tree import FrozenMap
from functrain.pure.arithmetic import added, checked, number, penalized, real, times
from functrain.pure.per_leaf import per_leaf
from functrain.pure.protocol import Optimizer
from functrain.pure.schedule import Schedule, at


def sgd(
    lr: Number | Schedule,
    momentum: Number = 0.0,
    dampening: Number = 0.0,
    weight_decay: Number = 0.0,
    *,
    nesterov: bool = False,
    maximize: bool = False,
) -> Optimizer:
    """Return SGD: p <- p - lr * (momentum buffer of (g + weight_decay * p)).

    Args:
        lr: a number, or a function of the count of steps.
        momentum: what the buffer keeps per step; at 0 there is no buffer, and nothing that a sweep could set.
        dampening: what the buffer does not take in of a gradient.
        weight_decay: L2 penalty, added to the gradient.
        nesterov: look ahead by one momentum step.
        maximize: go up instead of down.

    Raises:
        ValueError: a number out of bounds, nesterov without momentum, or with dampening.

    >>> optimizer = sgd(0.5)
    >>> params = FrozenMap({"w": torch.ones(1)})
    >>> optimizer.step(params, optimizer.init(params), params)[0]["w"]
    tensor([0.5000])

    See also: ``torch.optim.SGD``, which this equals bitwise.
    """
    checked(lr=lr, momentum=momentum, weight_decay=weight_decay)
    if nesterov and ((isinstance(momentum, float | int) and momentum <= 0) or dampening != 0):
        msg = "nesterov needs a momentum above 0 and no dampening"
        raise ValueError(msg)
    keeps = not (isinstance(momentum, float | int) and momentum == 0)
    numbers = {} if callable(lr) else {"lr": lr}
    numbers |= {"momentum": momentum, "dampening": dampening} if keeps else {}
    numbers |= {"weight_decay": weight_decay}

    def init(params: Any) -> Any:
        reals = {key: real(value) for key, value in numbers.items()}
        buffers = {"momentum_buffer": _tree.map_leaves(torch.zeros_like, params)} if keeps else {}
        return FrozenMap({"step": number(0), **reals, **buffers})

    def leaf(grad: Tensor, param: Tensor, state: Any, buffer: Tensor | None = None) -> tuple[Tensor, ...]:
        grad = penalized(-grad if maximize else grad, param, state["weight_decay"])
        if buffer is None:
            return (added(param, grad, -at(lr, state)),)
        buffer = _moved(buffer, grad, state)
        ahead = added(grad, buffer, state["momentum"]) if nesterov else buffer
        return added(param, ahead, -at(lr, state)), buffer

    return per_leaf(init, leaf, ("momentum_buffer",) if keeps else (), tuple(numbers))


def _moved(buffer: Tensor, grad: Tensor, state: Any) -> Tensor:
    """Return the momentum buffer after a gradient; the first one is taken in whole, as torch does."""
    first: Flag = state["step"] == 0
    moved = added(times(buffer, state["momentum"]), grad, 1.0 - state["dampening"])
    return select(first, lambda: grad, lambda: moved)
