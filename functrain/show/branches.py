"""A tree of records, mappings and sequences, step by step, with each path as source text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from functrain._record import Record


def branches(tree: Any, path: str) -> list[tuple[str, Any]] | None:
    """Return what stands directly below a node, with paths; None for a leaf.

    >>> branches({"0.weight": 1}, 'state.params["main"]')
    [('state.params["main"]["0.weight"]', 1)]
    """
    if isinstance(tree, Record):
        return [(f"{path}.{name}", getattr(tree, name)) for name in tree.names]
    if isinstance(tree, Mapping):
        return [(f"{path}[{_key(key)}]", value) for key, value in cast("Mapping[Any, Any]", tree).items()]
    if isinstance(tree, list | tuple):
        return [(f"{path}[{place}]", value) for place, value in enumerate(cast("tuple[Any, ...]", tree))]
    return None


def _key(key: Any) -> str:
    """Return a key as source text; strings in double quotes."""
    return json.dumps(key, ensure_ascii=False) if isinstance(key, str) else repr(key)


def ends(tree: Any, path: str) -> dict[str, Any]:
    """Return every leaf under its path.

    >>> ends({"a": (1, 2)}, "x")
    {'x["a"][0]': 1, 'x["a"][1]': 2}
    """
    below = branches(tree, path)
    if below is None:
        return {path: tree}
    return {place: leaf for child, value in below for place, leaf in ends(value, child).items()}
