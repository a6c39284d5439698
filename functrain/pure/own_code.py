"""Functions under code objects of their own: torch counts by code object how often it has compiled again."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, cast


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, or a bound method, that does the same under a code object of its own.

    One function that is made for many runs has one code object: without a copy for each run torch would refuse to
    compile the ninth of a process.

    >>> def double(x):
    ...     return 2 * x
    >>> own = with_own_code(double)
    >>> own(2), own.__code__ is double.__code__
    (4, False)
    """
    if isinstance(function, MethodType):
        return MethodType(with_own_code(function.__func__), function.__self__)
    given = cast("FunctionType", function)
    names = given.__globals__, given.__name__, given.__defaults__, given.__closure__
    own = FunctionType(given.__code__.replace(), *names)
    own.__kwdefaults__, own.__annotations__ = given.__kwdefaults__, given.__annotations__
    own.__doc__, own.__qualname__ = given.__doc__, given.__qualname__
    return own
