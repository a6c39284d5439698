"""Trees as JSON and back, bit by bit; what JSON lacks stands as an object with one key, which says what it is."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import optree
import torch
from torch import Tensor

from functrain._clock import Clock
from functrain._owners import Owners
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import NAMESPACE, FrozenMap, Record
from functrain._window import Window

RECORDS: dict[str, type[Record]] = {kind.__name__: kind for kind in (TrainState, Window, Clock)}
ANY_TYPE = ("batch", "autocast")
"""Fields of a state whose values need not be of the type of the default."""


@dataclass(frozen=True)
class Node:
    """What was a node of a class that only its owner can build: a named tuple, or one that optree was told about.

    Attributes:
        of: the name of the class; nothing looks it up.
        children: in the order of the class.
    """

    of: str
    children: tuple[Any, ...]


def class_name(value: Any) -> str:
    """Return module and name of the class of a value.

    >>> class_name(FrozenMap())
    'functrain._frozen_map:FrozenMap'
    """
    return f"{type(value).__module__}:{type(value).__qualname__}"


def children_of(value: Any) -> list[Any]:
    """Return what one node of a tree holds."""
    return list(cast("Any", optree).tree_flatten_one_level(value, none_is_leaf=True, namespace=NAMESPACE)[0])


def is_node(value: Any) -> bool:
    """Tell a node from a leaf; None is a leaf."""
    return not optree.tree_is_leaf(value, none_is_leaf=True, namespace=NAMESPACE)


class Encoder:
    """Makes JSON of trees.

    Args:
        store: keeps a tensor, given with its place, and returns what stands for it.
    """

    def __init__(self, store: Callable[[Tensor, str], Any]) -> None:
        """Keep where tensors go."""
        self._store = store
        self._kinds: tuple[tuple[type[Any], Callable[[Any, str], Any]], ...] = (
            (Tensor, lambda value, where: {"tensor": store(value, where)}),
            (Record, self._record),
            (Owners, lambda value, where: {"owners": self._pairs(value.table, where)}),
            (FrozenMap, lambda value, where: {"map": self._pairs(value, where)}),
            (Counter, lambda value, where: {"counter": self._pairs(value, where)}),
            (OrderedDict, lambda value, where: {"ordered": self._pairs(value, where)}),
            (frozenset, lambda value, where: {"set": sorted(self._each(value, where), key=repr)}),
            (Stage, lambda value, _: {"stage": value.name}),
            (torch.dtype, lambda value, _: {"dtype": str(value).removeprefix("torch.")}),
            (Node, lambda value, where: self._node(value.of, value.children, where)),
        )

    def encoded(self, value: Any, where: str) -> Any:
        """Return a value as JSON can hold it; ``where`` is its place as source text.

        Raises:
            ValueError: a value that is no data, with its place.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if (encode := self._plain_containers.get(cast("type[Any]", type(value)))) is not None:
            return encode(self, value, where)
        for kind, encode in self._kinds:
            if isinstance(value, kind):
                return encode(value, where)
        if is_node(value):
            return self._node(class_name(value), children_of(value), where)
        raise ValueError(f"{where} holds a {type(value).__name__}, which cannot be stored in a file of data")

    def _each(self, values: Any, where: str) -> list[Any]:
        return [self.encoded(each, f"{where}[{place}]") for place, each in enumerate(values)]

    def _pairs(self, value: Mapping[Any, Any], where: str) -> list[list[Any]]:
        return [[self.encoded(key, where), self.encoded(each, _item(where, key))] for key, each in value.items()]

    def _record(self, value: Record, where: str) -> dict[str, Any]:
        fields = {name: self.encoded(each, f"{where}.{name}") for name, each in vars(value).items()}
        return {"record": {"of": type(value).__name__, "fields": fields}}

    def _node(self, name: str, children: Any, where: str) -> dict[str, Any]:
        return {"node": {"of": name, "children": self._each(children, where)}}

    _plain_containers: Mapping[type[Any], Callable[[Any, Any, str], Any]] = {
        list: lambda self, value, where: self._each(value, where),
        tuple: lambda self, value, where: {"tuple": self._each(value, where)},
        dict: lambda self, value, where: {"dict": self._pairs(value, where)},
    }


def _item(where: str, key: Any) -> str:
    """Return the place of an item as source text."""
    return f"{where}[{json.dumps(key, ensure_ascii=False) if isinstance(key, str) else repr(key)}]"


class Decoder:
    """Makes trees of what an :class:`Encoder` has made; builds numbers and containers, and imports nothing.

    Args:
        fetch: returns the tensor of what stands for it.
    """

    def __init__(self, fetch: Callable[[Any], Tensor]) -> None:
        """Keep where tensors come from."""
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "tensor": fetch,
            "record": self._built,
            "owners": lambda pairs: Owners(self._mapping(pairs)),
            "map": lambda pairs: FrozenMap(self._mapping(pairs)),
            "dict": self._mapping,
            "counter": lambda pairs: Counter[Any](self._mapping(pairs)),
            "ordered": lambda pairs: OrderedDict[Any, Any](self._mapping(pairs)),
            "tuple": lambda items: tuple(self.decoded(each) for each in items),
            "set": lambda items: frozenset(self.decoded(each) for each in items),
            "stage": lambda name: Stage[name],
            "dtype": dtype_named,
            "float": _float,
            "node": lambda content: Node(str(content["of"]), tuple(map(self.decoded, content["children"]))),
        }

    def decoded(self, value: Any) -> Any:
        """Return what was encoded.

        Raises:
            ValueError: nothing that an encoder makes; says what is wrong.
        """
        if isinstance(value, list):
            return [self.decoded(each) for each in cast("list[Any]", value)]
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"the number {value} is written as no number; it stands as its bits")
        if not isinstance(value, dict):
            return value
        content = cast("dict[str, Any]", value)
        if len(content) != 1 or not self._kinds.keys() >= content.keys():
            raise ValueError(f"{sorted(content)} is no kind of value; there are {sorted(self._kinds)}")
        (kind, inner), *_ = content.items()
        try:
            return self._kinds[kind](inner)
        except (KeyError, TypeError, AttributeError, struct.error, RuntimeError, OverflowError) as error:
            raise ValueError(f"a damaged value of kind {kind!r}: {type(error).__name__}: {error}") from error

    def _mapping(self, pairs: Any) -> dict[Any, Any]:
        return {self.decoded(key): self.decoded(each) for key, each in pairs}

    def _built(self, content: Any) -> Record:
        kind = RECORDS[content["of"]]
        fields = {name: self.decoded(each) for name, each in content["fields"].items()}
        default = vars(kind())
        if fields.keys() != default.keys():
            raise ValueError(f"a {kind.__name__} has other fields: {sorted(fields.keys() ^ default.keys())}")
        for name, each in fields.items():
            if not _fits(each, default[name]) and name not in ANY_TYPE:
                raise ValueError(f"{kind.__name__}.{name} cannot be a {type(each).__name__}")
        return kind(**fields)


def _float(bits: Any) -> float:
    return struct.unpack(">d", bytes.fromhex(bits))[0]


def _fits(value: Any, default: Any) -> bool:
    """Tell whether a value may stand where a default does; numbers of the engine are tensors."""
    if isinstance(default, bool | int | float):
        return isinstance(value, bool | int | float | Tensor)
    return isinstance(value, type(default))


def dtype_named(name: Any) -> torch.dtype:
    """Return a dtype by its name.

    Raises:
        ValueError: no dtype has this name.

    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")  # noqa: TRY004 - a damaged file is a wrong value
    return found


def shape_of(sizes: Any) -> tuple[int, ...]:
    """Return a shape that was written as a list.

    Raises:
        ValueError: no list of counts.

    >>> shape_of([2, 3])
    (2, 3)
    """
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in cast("list[Any]", sizes)):
        raise ValueError(f"{sizes!r} is no shape")
    return tuple(cast("list[int]", sizes))
