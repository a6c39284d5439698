"""What an object holds, as a value that can be compared with what it holds later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from functrain.testing.forms import bits

DEPTH = 6
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(value: Any, depth: int = DEPTH) -> Any:
    """Return the contents of a value: containers, attributes, and what functions have closed over.

    >>> def counter(held=[0]):
    ...     held[0] += 1
    >>> before = fingerprint(counter)
    >>> counter()
    >>> fingerprint(counter) == before
    False
    """
    if isinstance(value, Tensor | float):
        return bits(value)
    if isinstance(value, PLAIN):
        return type(value).__name__, value
    if depth == 0 or isinstance(value, type | ModuleType):
        return id(value)
    return _inside(value, lambda each: fingerprint(each, depth - 1))


def _inside(value: Any, look: Callable[[Any], Any]) -> Any:  # noqa: PLR0911 - one a kind
    """Return the contents of a container, a function or an object."""
    match value:
        case Mapping():
            items = cast("Mapping[Any, Any]", value).items()
            return [(str(key), look(each)) for key, each in items]
        case tuple() | list():
            return [look(each) for each in cast("list[Any]", value)]
        case set() | frozenset():
            return frozenset(map(str, cast("set[Any]", value)))
        case FunctionType():
            return _function(value, look)
        case MethodType():
            return look(value.__self__), look(value.__func__)
        case partial():
            return look(value.func), look(value.args), look(value.keywords)
        case torch.Generator():
            return bits(value.get_state())
        case _:
            return _object(value, look)


def _function(value: FunctionType, look: Callable[[Any], Any]) -> Any:
    cells = [_content(cell) for cell in value.__closure__ or ()]
    return id(value), look(cells), look(value.__defaults__), look(value.__kwdefaults__), look(vars(value))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that nothing has been given to yet
        return None


def _object(value: Any, look: Callable[[Any], Any]) -> Any:
    private: Any = getattr(value, "__pydantic_private__", None)
    return id(value), look(getattr(value, "__dict__", None)), look(private)
