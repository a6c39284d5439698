"""The immutable mapping that the state is made of."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar, cast

import torch

V = TypeVar("V")
T = TypeVar("T")


class FrozenMap(Mapping[Any, V]):  # noqa: PLW1641 - no mapping of tensors can be hashed
    """An immutable mapping that keeps its order: same keys and the same leaves for ever.

    Not a subclass of ``dict``, whose ``__setitem__`` could always be called on it. Nested dicts are frozen too.
    ``|`` gives a new mapping; :meth:`derived` remembers what was computed from this one.

    >>> weights = FrozenMap({"main": {"bias": 1.0}})
    >>> weights["main"]["bias"]
    1.0
    >>> weights | {"teacher": {}}
    FrozenMap({'main': FrozenMap({'bias': 1.0}), 'teacher': FrozenMap({})})
    >>> weights["main"] = 0
    Traceback (most recent call last):
    ...
    TypeError: 'FrozenMap' object does not support item assignment
    """

    __slots__ = ("__weakref__", "_data", "_derived")
    _data: dict[Any, V]
    _derived: dict[Any, Any]

    def __init__(self, items: Mapping[Any, V] | None = None) -> None:
        """Take a copy of ``items``; dicts among the values become frozen maps."""
        data = {key: freeze(value) for key, value in items.items()} if items else {}
        object.__setattr__(self, "_data", data)

    def __getitem__(self, key: Any) -> V:
        """Return the value under ``key``; KeyError lists the keys there are."""
        try:
            return self._data[key]
        except KeyError:
            raise KeyError(f"{key!r}; there are {sorted(map(str, self._data))}") from None

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys in the order in which they were given."""
        return iter(self._data)

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._data)

    def __contains__(self, key: object) -> bool:
        """Tell whether ``key`` is there."""
        return key in self._data

    # Mapping's own three would go through __getitem__ key by key.
    def keys(self) -> KeysView[Any]:
        """Return the keys in order."""
        return self._data.keys()

    def values(self) -> ValuesView[V]:
        """Return the values in order."""
        return self._data.values()

    def items(self) -> ItemsView[Any, V]:
        """Return keys and values in order."""
        return self._data.items()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value under ``key``, or ``default``."""
        return self._data.get(key, default)

    def __eq__(self, other: object) -> bool:
        """Compare keys and values in any order; tensors are equal if dtype, device, shape and all elements are."""
        if self is other:
            return True
        if not isinstance(other, Mapping):
            return NotImplemented
        found = cast("Mapping[Any, Any]", other)
        return self.keys() == found.keys() and all(_equal(value, found[key]) for key, value in self.items())

    def __or__(self, other: Mapping[Any, Any]) -> FrozenMap[Any]:
        """Return a new mapping in which ``other`` overrides and extends this one."""
        data = self._data.copy()
        for key, value in other.items():
            data[key] = freeze(value) if type(value) is dict else value
        return wrap(data)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a FrozenMap is immutable."""
        raise AttributeError(f"FrozenMap is immutable; cannot set {name!r}; write mapping | {{key: value}}")

    def __delattr__(self, name: str) -> None:
        """Refuse: a FrozenMap is immutable."""
        raise AttributeError(f"FrozenMap is immutable; cannot delete {name!r}")

    def __reduce__(self) -> tuple[type[FrozenMap[Any]], tuple[dict[Any, V]]]:
        """Pickle and copy by content; what was derived is computed again."""
        return FrozenMap, (dict(self._data),)

    def __repr__(self) -> str:
        """Show the content as source text."""
        return f"FrozenMap({self._data!r})"

    def derived(self, key: object, build: Callable[[], T]) -> T:
        """Return what ``build()`` gave the first time it was asked for under ``key``.

        The mapping never changes, so neither does what depends on it: name lists and device groups are made once.
        Under a compiler everything is made once anyway, and a trace must leave nothing behind.
        """
        if torch.compiler.is_compiling():
            return build()
        held = getattr(self, "_derived", None)
        if held is None:  # most mappings live for one stage, and nobody asks them
            held = dict[Any, Any]()
            object.__setattr__(self, "_derived", held)
        found: Any = held.get(key, held)  # which stands for nothing
        return held.setdefault(key, build()) if found is held else found


def _equal(a: Any, b: Any) -> bool:
    """Compare two values; tensors as a whole, of which ``==`` would ask for the truth of every element."""
    tensors = [each for each in (a, b) if isinstance(each, torch.Tensor)]
    if a is b or not tensors:
        return a is b or bool(a == b)
    if len(tensors) == 1:  # a number of one interpreter beside one of the other
        return not tensors[0].ndim and bool(a == b)
    return (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape) and torch.equal(a, b)


_blank: Callable[[Any], Any] = object.__new__


def wrap(data: dict[Any, Any]) -> FrozenMap[Any]:
    """Make a FrozenMap of a dict that nobody else holds and whose values are frozen."""
    new = _blank(FrozenMap)
    object.__setattr__(new, "_data", data)
    return new


def freeze(value: Any) -> Any:
    """Return ``value`` with every dict in it (not inside other containers) as a FrozenMap.

    >>> freeze({"a": {"b": 1}})
    FrozenMap({'a': FrozenMap({'b': 1})})
    """
    return FrozenMap(cast("dict[Any, Any]", value)) if isinstance(value, dict) else value


def thaw(value: Any) -> Any:
    """Return ``value`` with every FrozenMap as a fresh plain dict.

    ``torch.func.functional_call`` accepts dicts only, and user code may write into what it is handed.

    >>> thaw(FrozenMap({"a": {"b": 1}}))
    {'a': {'b': 1}}
    """
    if not isinstance(value, FrozenMap):
        return value
    return {key: thaw(item) for key, item in cast("FrozenMap[Any]", value).items()}
