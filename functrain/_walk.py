"""Walks over trees in plain Python, for what a compiler traces.

Dynamo replaces optree's C functions by Python of its own, which takes a second per walk over a state; older versions
have no replacement at all. These lines do the same in a small part of the time. Nobody else calls them: outside a trace
optree is the faster one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import optree
from torch import Tensor

from functrain._frozen_map import FrozenMap, wrap
from functrain._record import Record

LEAVES = (Tensor, bool, int, float, str)


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a tree of the same structure with ``function`` applied leaf by leaf.

    Raises:
        ValueError: trees of different structures.

    >>> mapped(lambda a, b: a + b, FrozenMap({"x": (1, None)}), FrozenMap({"x": (2, None)}))
    FrozenMap({'x': (3, None)})
    """
    if isinstance(tree, LEAVES):
        return function(tree, *others)
    parts = _parts(tree)
    if parts is None:
        return optree.tree_map(function, tree, *others, namespace="functrain")
    rows = zip(parts, *(_parts_like(tree, other, len(parts)) for other in others), strict=True)
    return _made(tree, [mapped(function, *row) for row in rows])


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree in the order in which :func:`mapped` visits them.

    >>> leaves(FrozenMap({"b": 1, "a": ([2, 3], None)}))
    [1, 2, 3]
    """
    if isinstance(tree, LEAVES):
        return [tree]
    parts = _parts(tree)
    if parts is None:
        return optree.tree_leaves(tree, namespace="functrain")
    return [leaf for part in parts for leaf in leaves(part)]


def rebuilt(tree: Any, new_leaves: Iterable[Any]) -> Any:
    """Return a tree of the same structure with other leaves.

    >>> rebuilt(FrozenMap({"x": 1, "y": (2, 3)}), [4, 5, 6])
    FrozenMap({'x': 4, 'y': (5, 6)})
    """
    found = iter(new_leaves)

    def following(_: Any) -> Any:
        return next(found)

    return mapped(following, tree)


def alike(one: Any, other: Any) -> bool:
    """Tell whether two trees have the same structure, apart from the static fields of records.

    >>> alike((1, [2]), (3, [4])), alike((1, [2]), (3, 4))
    (True, False)
    """
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        return parts is others
    if type(one) is not type(other) or len(parts) != len(others):
        return False
    keyed = not _is_mapping(one) or _keys(one) == _keys(other)
    return keyed and all(alike(*pair) for pair in zip(parts, others, strict=True))


def _parts(tree: Any) -> list[Any] | None:
    """Return what a node holds, in order; None for what is no node known here."""
    if _is_mapping(tree):
        return [tree[key] for key in _keys(tree)]
    if isinstance(tree, Record):
        return [getattr(tree, name) for name in tree.children]
    return list(tree) if issubclass(type(tree), tuple | list) else ([] if tree is None else None)


def _is_mapping(tree: Any) -> bool:
    return isinstance(tree, FrozenMap) or type(tree) is dict


def _keys(tree: Any) -> list[Any]:
    """Return the keys of a mapping in the order in which optree visits them: those of a plain dict are sorted."""
    if isinstance(tree, FrozenMap):
        return list(tree.keys())
    sortable = all(isinstance(key, str) for key in tree) or all(isinstance(key, int) for key in tree)
    return sorted(tree) if sortable else list(tree)


def _parts_like(tree: Any, other: Any, count: int) -> list[Any]:
    """Return what another node of the same structure holds, in the order of the first."""
    parts = _parts(other) if type(other) is type(tree) else None
    if parts is None or len(parts) != count:
        msg = f"two trees differ in structure: {type(tree).__name__} of {count} and {type(other).__name__}"
        raise ValueError(msg)
    return [other[key] for key in _keys(tree)] if _is_mapping(tree) else parts


def _made(tree: Any, parts: list[Any]) -> Any:
    """Return a node like ``tree`` that holds other parts."""
    if _is_mapping(tree):
        named = dict(zip(_keys(tree), parts, strict=True))
        return wrap(named) if isinstance(tree, FrozenMap) else {key: named[key] for key in tree}
    if isinstance(tree, Record):
        return tree.replace(**dict(zip(tree.children, parts, strict=True)))
    if issubclass(type(tree), tuple):
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return None if tree is None else parts
