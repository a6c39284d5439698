"""Everything about trees: leaves, structure, paths as source text.

A state is read by two pytree libraries: optree (fast, rich paths) and ``torch.utils._pytree`` (the only one that
``vmap`` and ``torch.compile`` look at). Every node type is known to both: see :mod:`functrain._registration`. What a
compiler traces goes neither way: see :mod:`functrain._walk`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import optree
import torch

from functrain import _walk
from functrain._frozen_map import FrozenMap, freeze, thaw
from functrain._record import Record
from functrain._registration import NAMESPACE, record

__all__ = ["FrozenMap", "Record", "freeze", "leaves", "map_leaves", "paths", "record", "structure", "thaw"]


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree in its own order.

    >>> leaves(FrozenMap({"b": 1, "a": (2, 3)}))
    [1, 2, 3]
    """
    if torch.compiler.is_compiling():
        return _walk.leaves(tree)
    return optree.tree_leaves(tree, namespace=NAMESPACE)


def flattened(tree: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return the leaves of a tree and its structure.

    >>> flattened(FrozenMap({"a": 1}))[0]
    [1]
    """
    found, spec = optree.tree_flatten(tree, namespace=NAMESPACE)
    return found, spec


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a tree of the same structure with ``function`` applied leaf by leaf.

    >>> map_leaves(lambda a, b: a + b, FrozenMap({"x": 1}), FrozenMap({"x": 2}))
    FrozenMap({'x': 3})
    """
    if torch.compiler.is_compiling():
        return _walk.mapped(function, tree, *others)
    return optree.tree_map(function, tree, *others, namespace=NAMESPACE)


def rebuilt(tree: Any, new_leaves: list[Any]) -> Any:
    """Return a tree of the same structure with other leaves.

    >>> rebuilt(FrozenMap({"x": 1, "y": 2}), [3, 4])
    FrozenMap({'x': 3, 'y': 4})
    """
    if torch.compiler.is_compiling():
        return _walk.rebuilt(tree, new_leaves)
    return optree.tree_unflatten(structure(tree), new_leaves)


def structure(tree: Any) -> optree.PyTreeSpec:
    """Return the structure of a tree, to be compared with ``==``."""
    return optree.tree_structure(tree, namespace=NAMESPACE)


def alike(one: Any, other: Any) -> bool:
    """Tell whether two trees have the same structure.

    >>> alike(FrozenMap({"a": 1}), FrozenMap({"a": 2})), alike(FrozenMap({"a": 1}), FrozenMap({"b": 1}))
    (True, False)
    """
    if torch.compiler.is_compiling():
        return _walk.alike(one, other)
    return structure(one) == structure(other)


def paths(tree: Any, root: str = "state") -> dict[str, Any]:
    """Return every leaf under its path as source text, which evaluates to the leaf.

    >>> paths(FrozenMap({"main": {"0.weight": 1}}), "state.params")
    {'state.params["main"]["0.weight"]': 1}
    """
    accessors, found, _ = optree.tree_flatten_with_accessor(tree, namespace=NAMESPACE)
    return {_source(root, accessor): leaf for accessor, leaf in zip(accessors, found, strict=True)}


def _source(root: str, accessor: optree.PyTreeAccessor) -> str:
    """Return a path as source text; strings in double quotes, whatever they contain."""
    for step in accessor:
        quoted = isinstance(step, optree.MappingEntry) and isinstance(step.entry, str)
        root = f"{root}[{json.dumps(step.entry, ensure_ascii=False)}]" if quoted else step.codify(root)
    return root
