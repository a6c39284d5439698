"""A context in which torch draws from given noise: dropout of any kind, attention with dropout, and a few more."""

from __future__ import annotations

from types import FunctionType
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.nn.modules.dropout import (
    _DropoutNd,  # pyright: ignore[reportPrivateUsage] - what every dropout is
)
from torch.overrides import TorchFunctionMode

from functrain.pure.draws import DRAWS
from functrain.pure.noise import Missing, Noise


class Drawing(TorchFunctionMode):
    """While it is open, the functions in ``DRAWS`` take their randomness from a :class:`Noise`.

    Args:
        noise: what to draw from; None refuses to draw.

    >>> with Drawing(Noise(torch.tensor(0), torch.tensor(0))):
    ...     dropped = F.dropout(torch.ones(1000), 0.5)
    >>> dropped.unique()
    tensor([0., 2.])
    """

    def __init__(self, noise: Noise | None) -> None:
        super().__init__()
        self.noise = Missing() if noise is None else noise

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or what stands for it here.

        Raises:
            ValueError: something is to be drawn, and there is no noise.
        """
        kwargs = kwargs or {}
        if func in DRAWS:
            return DRAWS[func](self.noise, *args, **kwargs)
        if func in OPENED:
            with self:
                return OPENED[func](*args, **kwargs)
        if func is torch.Tensor.unflatten:  # which dynamo cannot trace under a mode
            return torch.unflatten(*args, **kwargs)
        return func(*args, **kwargs)


def _never(*_: Any) -> bool:
    return False


def _opened(function: Any) -> FunctionType:
    """Return a function of torch whose body runs under the mode that is open; as it is, it would leave it first."""
    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    names = {**function.__globals__, **dict.fromkeys(asked, _never)}
    names.pop("__name__")  # by which dynamo would look the names up in the module itself
    opened = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


OPENED = {each: _opened(each) for each in (F.multi_head_attention_forward, F.gumbel_softmax)}
"""Functions of torch that call random ones."""


def may_draw(module: nn.Module) -> bool:
    """Tell whether a part in training mode may draw; one that is not torch's own may, since it may call ``F.dropout``.

    >>> may_draw(nn.Linear(1, 1)), may_draw(nn.Sequential(nn.Dropout())), may_draw(nn.Sequential(nn.Dropout()).eval())
    (False, True, False)
    """
    return any(part.training and _draws(part) for part in module.modules())


def _draws(part: nn.Module) -> bool:
    """Tell whether the forward of one part may draw."""
    foreign = not type(part).__module__.startswith("torch.")
    rate = cast("Any", part.p if isinstance(part, _DropoutNd) else getattr(part, "dropout", 0.0))
    return foreign or (isinstance(rate, int | float) and rate > 0)
