"""Registration of the nodes that a state is made of: done once, at import, in both pytree libraries.

A node that only one of them knew would be a leaf for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast, dataclass_transform

import optree
import torch
from torch.utils import _pytree as torch_pytree

from functrain._frozen_map import FrozenMap, wrap
from functrain._record import Record

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
