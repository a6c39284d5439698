"""Strategies for annotated types as pydantic reads them: a type and its constraints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, PlainValidator, StringConstraints, WrapValidator

Nested = Callable[[type[BaseModel]], st.SearchStrategy[Any]]
REACH = 8
"""How far from its bound an open end is drawn."""


class Undrawable(Exception):  # noqa: N818 - a reason, which becomes part of an error
    """A type that no strategy is known for."""


@dataclass(frozen=True)
class Bounds:
    """What the metadata of a field say about its values."""

    ge: Any = None
    gt: Any = None
    le: Any = None
    lt: Any = None
    multiple_of: Any = None
    min_length: int = 0
    max_length: int | None = None
    finite: bool = False
    pattern: str | None = None

    @property
    def low(self) -> Any:
        """The lower bound, open or not."""
        return self.ge if self.ge is not None else self.gt

    @property
    def high(self) -> Any:
        """The upper bound, open or not."""
        return self.le if self.le is not None else self.lt


SAID_BY = {
    Ge: "ge",
    Gt: "gt",
    Le: "le",
    Lt: "lt",
    MultipleOf: "multiple_of",
    MinLen: "min_length",
    MaxLen: "max_length",
}


def bounds_of(metadata: Sequence[Any]) -> Bounds:
    """Collect the constraints among metadata.

    Raises:
        Undrawable: a validator of the class's own, which might ask for anything.

    >>> bounds_of([Ge(1)]).low
    1
    """
    bounds = Bounds()
    for each in metadata:
        bounds = _with(bounds, each)
    return bounds


def _with(bounds: Bounds, constraint: Any) -> Bounds:
    if isinstance(constraint, BeforeValidator | PlainValidator | WrapValidator):
        msg = "it has a validator of its own"
        raise Undrawable(msg)
    if isinstance(constraint, StringConstraints):
        least, most = constraint.min_length or 0, constraint.max_length
        return replace(bounds, min_length=least, max_length=most, pattern=constraint.pattern)
    if isinstance(constraint, GroupedMetadata):
        return bounds_of_group(bounds, constraint)
    if (name := SAID_BY.get(cast("type[Any]", type(constraint)))) is not None:
        return replace(bounds, **{name: getattr(constraint, name)})
    general = cast("Mapping[str, Any]", getattr(constraint, "__dict__", {}))
    if general.get("allow_inf_nan") is False:
        return replace(bounds, finite=True)
    return replace(bounds, pattern=general.get("pattern", bounds.pattern))


def bounds_of_group(bounds: Bounds, group: GroupedMetadata) -> Bounds:
    """Add each constraint of a group such as ``Interval``."""
    for each in group:
        bounds = _with(bounds, each)
    return bounds


def values_of(kind: Any, metadata: Sequence[Any], nested: Nested) -> st.SearchStrategy[Any]:
    """Draw values of a type.

    Args:
        kind: an annotation.
        metadata: its constraints.
        nested: draws a pydantic model.

    Raises:
        Undrawable: a type that is not known, with the reason.

    >>> values_of(int, [Ge(1), Le(3)], st.builds)
    integers(min_value=1, max_value=3)
    """
    if get_origin(kind) is Annotated:
        inner, *own = get_args(kind)
        return values_of(inner, (*own, *metadata), nested)
    bounds = bounds_of(metadata)
    if get_origin(kind) in (Union, UnionType):
        return _union(get_args(kind), metadata, nested)
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) in CONTAINERS:
        return _container(kind, bounds, nested)
    return _plain(kind, bounds, nested)


def _union(members: Sequence[Any], metadata: Sequence[Any], nested: Nested) -> st.SearchStrategy[Any]:
    """Draw from those members that can be drawn; None first, which is where failures shrink to."""
    found: list[st.SearchStrategy[Any]] = []
    for each in sorted(members, key=lambda member: member is not NoneType):
        try:
            found.append(values_of(each, metadata, nested))
        except Undrawable:
            continue
    if not found:
        msg = "none of its members can be"
        raise Undrawable(msg)
    return st.one_of(found)


def _plain(kind: Any, bounds: Bounds, nested: Nested) -> st.SearchStrategy[Any]:
    makers: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
        NoneType: st.none,
        bool: st.booleans,
        int: lambda: _integers(bounds),
        float: lambda: _floats(bounds),
        str: lambda: _texts(bounds),
    }
    if kind in makers:
        return makers[kind]()
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return nested(kind)
    msg = "no strategy is known for this type"
    raise Undrawable(msg)


def _integers(bounds: Bounds) -> st.SearchStrategy[int]:
    step = bounds.multiple_of or 1
    low = None if bounds.low is None else math.floor(bounds.low / step) + 1
    if bounds.ge is not None:
        low = math.ceil(bounds.ge / step)
    high = None if bounds.high is None else math.ceil(bounds.high / step) - 1
    if bounds.le is not None:
        high = math.floor(bounds.le / step)
    low, high = _closed(low, high, REACH)
    whole = st.integers(low, high)
    return whole if step == 1 else whole.map(lambda count: count * step)


def _closed(low: Any, high: Any, reach: Any) -> tuple[Any, Any]:
    """Return bounds without an open end."""
    if low is None and high is None:
        return -reach, reach
    return (high - reach if low is None else low), (low + reach if high is None else high)


def _floats(bounds: Bounds) -> st.SearchStrategy[float]:
    if bounds.multiple_of is not None:
        return _integers(bounds).map(float)
    low, high = _closed(bounds.low, bounds.high, 1000.0)
    open_low, open_high = bounds.gt is not None and low == bounds.gt, bounds.lt is not None and high == bounds.lt
    inside = st.floats(float(low), float(high), exclude_min=open_low, exclude_max=open_high, width=64)
    ends = [float(end) for end in (bounds.ge, bounds.le) if end is not None]
    if bounds.high is None and not bounds.finite:
        ends.append(math.inf)
    return inside | st.sampled_from(ends) if ends else inside


def _texts(bounds: Bounds) -> st.SearchStrategy[str]:
    if bounds.pattern is not None:
        return st.from_regex(bounds.pattern, fullmatch=True)
    return st.text("abc", min_size=bounds.min_length, max_size=bounds.max_length or bounds.min_length + REACH)


CONTAINERS = (list, set, frozenset, tuple, dict)


def _container(kind: Any, bounds: Bounds, nested: Nested) -> st.SearchStrategy[Any]:
    inner = [values_of(each, (), nested) for each in get_args(kind) if each is not Ellipsis]
    least, most = bounds.min_length, bounds.max_length or bounds.min_length + REACH
    origin = get_origin(kind)
    if origin is dict:
        return st.dictionaries(*inner, min_size=least, max_size=most)
    if origin is tuple and Ellipsis not in get_args(kind):
        return st.tuples(*inner)
    if origin in (set, frozenset):
        return st.sets(inner[0], min_size=least, max_size=most).map(cast("Any", origin))
    return st.lists(inner[0], min_size=least, max_size=most).map(cast("Any", origin))
