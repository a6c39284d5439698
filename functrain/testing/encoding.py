"""States as JSON and back, bit by bit; what JSON lacks stands as an object with one key, which says what it is."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from functrain import FrozenMap, Stage, TrainState
from functrain._clock import Clock
from functrain._owners import Owners
from functrain._tree import Record
from functrain._window import Window
from functrain.testing.tensor_bytes import dtype_named, tensor_of_record, tensor_record

RECORDS: dict[str, type[Record]] = {kind.__name__: kind for kind in (TrainState, Window, Clock)}
ANY_TYPE = ("batch", "autocast")
"""Fields of a state whose values need not be of the type of the default."""


def encoded(value: Any, where: str = "state") -> Any:
    """Return a value as JSON can hold it.

    Args:
        value: a tree of tensors, numbers, texts, states, dtypes and stages.
        where: it is, as source text; for the error.

    Raises:
        ValueError: a value of another type, with its place.

    >>> encoded({"a": (1, float("inf"))})
    {'dict': [['a', {'tuple': [1, {'float': '7ff0000000000000'}]}]]}
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if type(value) is list:
        return _each(cast("list[Any]", value), where)
    for kind, encode in ENCODERS:
        if isinstance(value, kind):
            return encode(value, where)
    raise ValueError(f"{where} holds a {type(value).__name__}, which cannot be stored in a file of data")


def _each(values: Any, where: str) -> list[Any]:
    return [encoded(each, f"{where}[{place}]") for place, each in enumerate(values)]


def _pairs(value: Mapping[Any, Any], where: str) -> list[list[Any]]:
    return [[encoded(key, where), encoded(each, f"{where}[{key!r}]")] for key, each in value.items()]


def _tensor(value: Tensor, where: str) -> dict[str, Any]:
    try:
        return {"tensor": tensor_record(value)}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _record(value: Record, where: str) -> dict[str, Any]:
    fields = {name: encoded(each, f"{where}.{name}") for name, each in vars(value).items()}
    return {"record": {"of": type(value).__name__, "fields": fields}}


ENCODERS: tuple[tuple[type[Any], Callable[[Any, str], Any]], ...] = (
    (Tensor, _tensor),
    (Record, _record),
    (Owners, lambda value, where: {"owners": _pairs(value.table, where)}),
    (FrozenMap, lambda value, where: {"map": _pairs(value, where)}),
    (dict, lambda value, where: {"dict": _pairs(value, where)}),
    (tuple, lambda value, where: {"tuple": _each(value, where)}),
    (frozenset, lambda value, where: {"set": sorted(_each(value, where), key=repr)}),
    (Stage, lambda value, _: {"stage": value.name}),
    (torch.dtype, lambda value, _: {"dtype": str(value).removeprefix("torch.")}),
)


def decoded(value: Any) -> Any:
    """Return what :func:`encoded` was given; builds tensors, numbers and containers, and imports nothing.

    Raises:
        ValueError: nothing that it returns; says what is wrong.

    >>> decoded({"dict": [["a", {"tuple": [1, {"float": "7ff0000000000000"}]}]]})
    {'a': (1, inf)}
    """
    if isinstance(value, list):
        return [decoded(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    content = cast("dict[str, Any]", value)
    if len(content) != 1 or not DECODERS.keys() >= content.keys():
        raise ValueError(f"{sorted(content)} is no kind of value; there are {sorted(DECODERS)}")
    (kind, inner), *_ = content.items()
    try:
        return DECODERS[kind](inner)
    except (KeyError, TypeError, AttributeError, struct.error, RuntimeError) as error:
        raise ValueError(f"a damaged value of kind {kind!r}: {type(error).__name__}: {error}") from error


def _mapping(pairs: Any) -> dict[Any, Any]:
    return {decoded(key): decoded(each) for key, each in pairs}


def _float(bits: Any) -> float:
    return struct.unpack(">d", bytes.fromhex(bits))[0]


def _built(content: Any) -> Record:
    kind = RECORDS[content["of"]]
    fields = {name: decoded(each) for name, each in content["fields"].items()}
    default = vars(kind())
    if fields.keys() != default.keys():
        raise ValueError(f"a {kind.__name__} has other fields: {sorted(fields.keys() ^ default.keys())}")
    for name, each in fields.items():
        if not _fits(each, default[name]) and name not in ANY_TYPE:
            raise ValueError(f"{kind.__name__}.{name} cannot be a {type(each).__name__}")
    return kind(**fields)


def _fits(value: Any, default: Any) -> bool:
    """Tell whether a value may stand where a default does; numbers of the engine are tensors."""
    if isinstance(default, bool | int | float):
        return isinstance(value, bool | int | float | Tensor)
    return isinstance(value, type(default))


DECODERS: dict[str, Callable[[Any], Any]] = {
    "tensor": tensor_of_record,
    "record": _built,
    "owners": lambda pairs: Owners(_mapping(pairs)),
    "map": lambda pairs: FrozenMap(_mapping(pairs)),
    "dict": _mapping,
    "tuple": lambda items: tuple(decoded(each) for each in items),
    "set": lambda items: frozenset(decoded(each) for each in items),
    "stage": lambda name: Stage[name],
    "dtype": dtype_named,
    "float": _float,
}
