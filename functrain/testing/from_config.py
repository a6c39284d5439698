"""Hooks with drawn configuration, from the types and bounds that a class declares."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from functrain import Hook
from functrain.testing.field_values import Undrawable, values_of

H = TypeVar("H", bound=Hook)
CONTRACT = frozenset(Hook.model_fields)
"""What a hook says about itself is no configuration: it is drawn only if somebody asks for it."""


def from_config(hook: type[H], /, **fixed: Any) -> st.SearchStrategy[H]:
    """Draw hooks of a class, each field from its type, its bounds and its default.

    Bounds (``ge gt le lt multiple_of``, lengths), ``Literal``, enums, ``Optional``, unions, containers and nested
    models are understood. An open end is drawn close to its bound: lengths and periods become memory and time.

    Args:
        hook: the class.
        fixed: for a field a value, or a strategy for one.

    Raises:
        InvalidArgument: no class of hooks, an unknown field, or a field that cannot be drawn.

    >>> from functrain import EMA, MixedPrecision
    >>> from_config(EMA, update_every=1)
    from_config(EMA, update_every=1)
    >>> from_config(MixedPrecision)
    Traceback (most recent call last):
    ...
    hypothesis.errors.InvalidArgument: MixedPrecision.precision cannot be drawn from torch.dtype | str: ...
    """
    if not (isinstance(hook, type) and issubclass(hook, Hook)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"from_config needs a class of hooks, such as EMA, got {hook!r}")
    if unknown := sorted(fixed.keys() - hook.model_fields.keys()):
        raise InvalidArgument(
            f"{hook.__name__} has no field {', '.join(unknown)}; there are {sorted(hook.model_fields)}"
        )
    drawn = {name: _given(value) for name, value in fixed.items()}
    for name, info in hook.model_fields.items():
        if name not in CONTRACT and name not in fixed:
            drawn[name] = field_values(hook, name, info)
    return FromConfig(hook, drawn, fixed)


def _given(value: Any) -> st.SearchStrategy[Any]:
    return cast("st.SearchStrategy[Any]", value) if isinstance(value, st.SearchStrategy) else st.just(value)


def field_values(owner: type[BaseModel], name: str, info: FieldInfo) -> st.SearchStrategy[Any]:
    """Draw the values of one field: its default now and then, and only that where the type cannot be drawn.

    Raises:
        InvalidArgument: a required field of a type that cannot be drawn.
    """
    default = None if info.default is PydanticUndefined else st.just(info.default)
    if info.default_factory is not None:
        default = st.builds(cast("Any", info.default_factory))
    try:
        drawn = values_of(info.annotation, tuple(info.metadata), nested_values)
    except Undrawable as reason:
        if default is None:
            raise InvalidArgument(_complaint(owner, name, info, reason)) from None
        return default
    return drawn if default is None else default | drawn


def nested_values(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    """Draw a model that is the value of a field."""
    fields = model.model_fields.items()
    return _built(model, {info.alias or name: field_values(model, name, info) for name, info in fields})


@st.composite
def _built(draw: st.DrawFn, model: type[BaseModel], drawn: dict[str, st.SearchStrategy[Any]]) -> Any:
    """Draw the fields and build; what the class refuses as a whole is not drawn."""
    values = {name: draw(each) for name, each in drawn.items()}
    try:
        return model(**values)
    except ValidationError:
        reject()


def _complaint(owner: type[BaseModel], name: str, info: FieldInfo, reason: Undrawable) -> str:
    kind = str(info.annotation) if not isinstance(info.annotation, type) else info.annotation.__name__
    return (
        f"{owner.__name__}.{name} cannot be drawn from {kind}: {reason}; "
        f"write from_config({owner.__name__}, {name}=strategy), or {name}=value"
    )


class FromConfig(st.SearchStrategy[H]):
    """Made by :func:`from_config`; prints as the call that makes it."""

    def __init__(self, hook: type[H], drawn: dict[str, st.SearchStrategy[Any]], fixed: dict[str, Any]) -> None:
        """Keep what is drawn, and what to print."""
        super().__init__()
        self._inner = cast("st.SearchStrategy[H]", _built(hook, drawn))
        self._text = ", ".join([hook.__name__, *(f"{name}={value!r}" for name, value in fixed.items())])

    def do_draw(self, data: Any) -> H:
        """Draw a hook."""
        return data.draw(self._inner)

    def __repr__(self) -> str:
        """Print the call."""
        return f"from_config({self._text})"
