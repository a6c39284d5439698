"""Everything about trees: the immutable record, the registration of all nodes, paths as source text.

A state is read by two pytree libraries: optree (fast, rich paths) and ``torch.utils._pytree`` (the only one that
``vmap`` and ``torch.compile`` look at). A node that only one of them knows would be a leaf for the other, so every
node type is registered here, in both. What a compiler traces goes neither way: see :mod:`functrain._walk`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast, dataclass_transform

import optree
import torch
from torch.utils import _pytree as torch_pytree

from functrain import _walk
from functrain._frozen_map import FrozenMap, freeze, thaw, wrap
from functrain._record import Record

__all__ = ["FrozenMap", "Record", "freeze", "leaves", "map_leaves", "paths", "record", "structure", "thaw"]

NAMESPACE = "functrain"
R = TypeVar("R", bound=Record)


@dataclass_transform(frozen_default=True, eq_default=False)
def record(*static: str) -> Callable[[type[R]], type[R]]:
    """Make a class a frozen dataclass and a node of both registries; ``static`` fields are no leaves."""

    def register(cls: type[R]) -> type[R]:
        made = dataclass(frozen=True, eq=False)(cls)
        made.names = tuple(field.name for field in fields(cast("Any", made)))
        made.children = names = tuple(name for name in made.names if name not in static)
        _register_record(made, names, static)
        return made

    return register


def _register_record(cls: type[Any], names: tuple[str, ...], static: tuple[str, ...]) -> None:
    """Register one record class: children by field name, static fields as the node's own data."""

    def flatten(node: Any) -> tuple[list[Any], tuple[Any, ...]]:
        content = node.__dict__
        return [content[name] for name in names], tuple(content[name] for name in static)

    def unflatten(own: tuple[Any, ...], children: Any) -> Any:
        if torch.compiler.is_compiling():  # Dynamo before 2.13 does not know the __dict__ of a record
            return cls(**dict(zip(names, children, strict=True)), **dict(zip(static, own, strict=True)))
        new = object.__new__(cls)
        new.__dict__.update(zip(names, children, strict=True))
        new.__dict__.update(zip(static, own, strict=True))
        return new

    def with_keys(node: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, own = flatten(node)
        return [(torch_pytree.GetAttrKey(name), child) for name, child in zip(names, children, strict=True)], own

    _register(cls, flatten, unflatten, with_keys, lambda _: names, optree.GetAttrEntry)


def _register(
    cls: type[Any],
    flatten: Callable[[Any], tuple[list[Any], Any]],
    unflatten: Callable[[Any, Any], Any],
    with_keys: Callable[[Any], tuple[list[tuple[Any, Any]], Any]],
    entries: Callable[[Any], tuple[Any, ...]],
    entry_type: type[optree.PyTreeEntry],
) -> None:
    """Register a node type in torch's registry and in optree's."""
    torch_pytree.register_pytree_node(
        cls,
        flatten,
        lambda children, own: unflatten(own, children),
        flatten_with_keys_fn=with_keys,
        serialized_type_name=f"functrain.{cls.__name__}",
    )
    optree.register_pytree_node(
        cls,
        lambda node: (*flatten(node), entries(node)),
        unflatten,
        path_entry_type=entry_type,
        namespace=NAMESPACE,
    )


def _flatten_map(node: FrozenMap[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    return list(node.values()), tuple(node)


def _unflatten_map(keys: tuple[Any, ...], values: Any) -> FrozenMap[Any]:
    return wrap(dict(zip(keys, values, strict=True)))


def _flatten_map_with_keys(node: FrozenMap[Any]) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    return [(torch_pytree.MappingKey(key), value) for key, value in node.items()], tuple(node)


_register(FrozenMap, _flatten_map, _unflatten_map, _flatten_map_with_keys, tuple, optree.MappingEntry)


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
