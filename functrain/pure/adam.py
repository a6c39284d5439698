"""Adam and AdamW, with the formulas of ``torch.optim``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from functrain import _tree
from functrain._select import Number
from functrain._tree import FrozenMap
from functrain.pure.arithmetic import checked, number, penalized, real, times
from functrain.pure.per_leaf import per_leaf
from functrain.pure.protocol import Optimizer
from functrain.pure.schedule import Schedule, at

Decay = Callable[[Tensor, Tensor, Any, Tensor], tuple[Tensor, Tensor]]


def adam(
    lr: Number | Schedule = 1e-3,
    betas: tuple[Number, Number] = (0.9, 0.999),
    eps: Number = 1e-8,
    weight_decay: Number = 0.0,
    *,
    amsgrad: bool = False,
    maximize: bool = False,
) -> Optimizer:
    """Return Adam; ``weight_decay`` is added to the gradient.

        m <- lerp(m, g, 1 - beta1);  v <- beta2 * v + (1 - beta2) * g^2
        p <- p - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)

    Args:
        lr: a number, or a function of the count of steps.
        betas: what the two averages keep per step.
        eps: added to the denominator.
        weight_decay: L2 penalty.
        amsgrad: divide by the largest average of squares so far.
        maximize: go up instead of down.

    Raises:
        ValueError: a number out of bounds.

    Source: Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, algorithm 1.

    >>> optimizer = adam(0.5)
    >>> params = FrozenMap({"w": torch.ones(1)})
    >>> optimizer.step(params, optimizer.init(params), params)[0]["w"]
    tensor([0.5000])

    See also: :func:`adamw`, which decays the weights themselves; ``torch.optim.Adam``, from which a step in float32 is
    at most two units in the last place away, and fifty steps in float64 are within 1e-12.
    """
    return _adam(lr, betas, eps, weight_decay, amsgrad, maximize, _into_gradient)


def adamw(
    lr: Number | Schedule = 1e-3,
    betas: tuple[Number, Number] = (0.9, 0.999),
    eps: Number = 1e-8,
    weight_decay: Number = 1e-2,
    *,
    amsgrad: bool = False,
    maximize: bool = False,
) -> Optimizer:
    """Return AdamW: :func:`adam` with p <- p * (1 - lr * weight_decay) before each step instead of an L2 penalty.

    Source: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 2.

    >>> optimizer = adamw(0.5, weight_decay=0.5)
    >>> params = FrozenMap({"w": torch.ones(1)})
    >>> optimizer.step(params, optimizer.init(params), params)[0]["w"]
    tensor([0.2500])
    """
    return _adam(lr, betas, eps, weight_decay, amsgrad, maximize, _into_weights)


def _into_gradient(grad: Tensor, param: Tensor, state: Any, rate: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001 - a decay
    return penalized(grad, param, state["weight_decay"]), param


def _into_weights(grad: Tensor, param: Tensor, state: Any, rate: Tensor) -> tuple[Tensor, Tensor]:
    return grad, times(param, 1.0 - rate * state["weight_decay"])


def _adam(
    lr: Number | Schedule, betas: Any, eps: Number, weight_decay: Number, amsgrad: bool, maximize: bool, decay: Decay
) -> Optimizer:
    """Return either of the two."""
    checked(lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
    numbers = {} if callable(lr) else {"lr": lr}
    numbers |= {"beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
    names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if amsgrad else ()))

    def init(params: Any) -> Any:
        reals = {key: real(value) for key, value in numbers.items()}
        buffers = {name: _tree.map_leaves(torch.zeros_like, params) for name in names}
        return FrozenMap({"step": number(0), **reals, **buffers})

    def leaf(
        grad: Tensor, param: Tensor, state: Any, mean: Tensor, square: Tensor, *largest: Tensor
    ) -> tuple[Tensor, ...]:
        rate = at(lr, state)
        grad, param = decay(-grad if maximize else grad, param, state, rate)
        mean = torch.lerp(mean, grad, (1.0 - state["beta1"]).to(grad.device, grad.dtype))
        square = torch.addcmul(times(square, state["beta2"]), grad, times(grad, 1.0 - state["beta2"]))
        largest = tuple(torch.maximum(each, square) for each in largest)
        return _stepped(param, mean, (*largest, square)[0], state, rate), mean, square, *largest

    return per_leaf(init, leaf, names, tuple(numbers))


def _stepped(param: Tensor, mean: Tensor, square: Tensor, state: Any, rate: Tensor) -> Tensor:
    """Return the parameter after a step along ``mean``, each element scaled by its own ``square``."""
    count = state["step"] + 1
    size = rate / (1.0 - state["beta1"] ** count)
    root = (1.0 - state["beta2"] ** count).sqrt()
    denominator = square.sqrt() / root.to(square.device, square.dtype) + state["eps"].to(square.device, square.dtype)
    return torch.addcdiv(param, times(mean, -size), denominator)
