"""Strategies whose arguments are looked at when they are given, not when the first example is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

P = ParamSpec("P")
T = TypeVar("T")
Drawing = Callable[Concatenate[st.DrawFn, P], T]


def strategy(check: Callable[..., None]) -> Callable[[Drawing[P, T]], Callable[P, st.SearchStrategy[T]]]:
    """Make a strategy of a function that draws; ``check`` is called with the arguments that were given."""

    def decorate(function: Drawing[P, T]) -> Callable[P, st.SearchStrategy[T]]:
        composite = st.composite(function)

        @wraps(composite)
        def checked(*args: P.args, **options: P.kwargs) -> st.SearchStrategy[T]:
            check(*args, **options)
            return composite(*args, **options)

        return checked

    return decorate


def check_options(*_: Any, **options: Any) -> None:
    """Refuse options that no strategy of this package can work with.

    Raises:
        InvalidArgument: names the option, what was given and what is needed.
    """
    for name, value in options.items():
        if value is not None and (problem := CHECKS.get(name, _fine)(value)):
            raise InvalidArgument(f"{name}={value!r} {problem}")
    least, most = options.get("min_size"), options.get("max_size")
    if least is not None and most is not None and least > most:
        raise InvalidArgument(f"min_size={least} is larger than max_size={most}")


def _fine(_: Any) -> str:
    return ""


def _size(value: Any) -> str:
    return "" if type(value) is int and value >= 0 else "must be an int of at least 0"


def _strategy(value: Any) -> str:
    return "" if isinstance(value, st.SearchStrategy) else "must be a strategy, such as hypothesis.strategies.floats()"


def _all(value: Any, kind: type[Any], what: str) -> str:
    fine = isinstance(value, Sequence) and bool(value) and all(isinstance(each, kind) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return "" if fine and not isinstance(value, str) else f"must be a non-empty sequence of {what}"


CHECKS: dict[str, Callable[[Any], str]] = {
    "min_size": _size,
    "max_size": _size,
    "elements": _strategy,
    "shapes": lambda value: _all(value, tuple, "shapes, which are tuples of ints"),
    "dtypes": lambda value: _all(value, torch.dtype, "torch.dtype"),
    "models": lambda value: _all(value, str, "model keys"),
    "names": lambda value: _all(value, str, "parameter names"),
    "optimizers": lambda value: _all(value, str, "optimizer keys"),
    "kinds": lambda value: _all(value, type, "hook classes"),
}
