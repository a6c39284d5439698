"""Tensors that a trace may keep: nobody writes over them, and no transform of torch holds them."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, cast

from torch import Tensor

_functorch: Any = import_module("torch._C._functorch")  # nobody has annotated it


def kept(value: Any) -> Any:
    """Return a copy of a tensor, taken out of ``torch.func.grad``, or of an array; anything else as it is.

    Waits for no device.

    >>> kept(3)
    3
    """
    if isinstance(value, Tensor):
        return plain(value.detach().clone())
    return copy.copy(value) if hasattr(value, "__array__") else value


def plain(value: Any) -> Any:
    """Return a tensor as it is outside of ``torch.func.grad``, without its graph; anything else as it is.

    >>> import torch
    >>> seen = []
    >>> _ = torch.func.grad(lambda x: seen.append(plain(x * 2)) or x)(torch.tensor(1.0))
    >>> seen
    [tensor(2.)]
    """
    value = value.detach() if isinstance(value, Tensor) else value  # unwrapped first, it would be wrapped again
    while isinstance(value, Tensor) and _functorch.is_functorch_wrapped_tensor(value):
        value = cast("Tensor", _functorch.get_unwrapped(value))
    return value


def inside_vmap() -> bool:
    """Tell whether ``torch.func.vmap`` is running, in which no lane has a value of its own.

    >>> import torch
    >>> found = []
    >>> _ = torch.func.vmap(lambda x: found.append(inside_vmap()) or x)(torch.ones(2))
    >>> found, inside_vmap()
    ([True], False)
    """
    levels = _functorch.get_interpreter_stack() or ()
    return any(each.key() == _functorch.TransformType.Vmap for each in levels)
