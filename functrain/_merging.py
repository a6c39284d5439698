"""What was stored, in the structure that a run has: by key and by place, with an error that names the first misfit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import optree
import torch
from torch import Tensor

from functrain import _tree
from functrain._encoding import Node, children_of, class_name, is_node
from functrain._tree import FrozenMap

Leaf: TypeAlias = Callable[[Any, Any, str], Any]
"""Takes the current leaf, the stored one and the place, and returns the stored one as the run wants it."""


def merged(current: Any, stored: Any, path: str, leaf: Leaf) -> Any:
    """Return stored values in the structure of current ones.

    Raises:
        KeyError: what was not stored, or what nobody knows.
        ValueError: another kind, or whatever ``leaf`` refuses.

    >>> merged(FrozenMap({"a": 0}), {"a": 1}, "slot", converted)
    FrozenMap({'a': 1})
    """
    if isinstance(current, _tree.Record):
        stored = vars(stored) if isinstance(stored, _tree.Record) else stored
        items = {k: (v, item(stored, k, f"{path}.{k}")) for k, v in vars(current).items()}
        return current.replace(**{k: merged(*pair, f"{path}.{k}", leaf) for k, pair in items.items()})
    if isinstance(current, Mapping):
        known = cast("Mapping[Any, Any]", current)
        held = of_keys(stored, known, path)
        return FrozenMap({k: merged(v, held[k], f'{path}["{k}"]', leaf) for k, v in known.items()})
    return _merged_node(current, stored, path, leaf) if is_node(current) else leaf(current, stored, path)


def _merged_node(current: Any, stored: Any, path: str, leaf: Leaf) -> Any:
    """Return a tuple, a list or a node of a class, child by child."""
    children, metadata, _, unflatten = cast("Any", optree).tree_flatten_one_level(
        current, none_is_leaf=True, namespace=_tree.NAMESPACE
    )
    found = list(stored.children) if isinstance(stored, Node) else children_of(stored) if is_node(stored) else []
    of = stored.of if isinstance(stored, Node) else class_name(stored)
    if of != class_name(current) or len(found) != len(children):
        raise ValueError(f"{path}: stored {of} of {len(found)}, expected {class_name(current)} of {len(children)}")
    pairs = enumerate(zip(children, found, strict=True))
    return unflatten(metadata, [merged(*pair, f"{path}[{place}]", leaf) for place, pair in pairs])


def item(stored: Any, key: str, path: str) -> Any:
    """Return a part of what was stored.

    Raises:
        KeyError: there is none.
    """
    if not isinstance(stored, Mapping) or key not in stored:
        msg = f"{path!r} is missing from the checkpoint"
        raise KeyError(msg)
    return cast("Mapping[str, Any]", stored)[key]


def of_keys(stored: Any, current: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return stored parts for exactly the keys that there are.

    Raises:
        ValueError: no parts at all.
        KeyError: other keys.
    """
    if not isinstance(stored, Mapping):
        raise ValueError(other_kind(current, stored, path))  # noqa: TRY004 - the content of a checkpoint
    held = dict(cast("Mapping[str, Any]", stored))
    if set(held) != set(current):
        msg = f"{path}: stored keys {sorted(map(str, held))}, expected {sorted(map(str, current))}"
        raise KeyError(msg)
    return held


def converted(current: Any, stored: Any, path: str) -> Any:
    """Return a stored leaf: a tensor of the same shape, or a number, which may be stored as either kind.

    Raises:
        ValueError: a leaf of another kind or shape.
    """
    if isinstance(current, Tensor):
        if isinstance(stored, int | float) and not current.ndim:
            return torch.as_tensor(stored, dtype=current.dtype, device=current.device)
        if not isinstance(stored, Tensor) or current.shape != stored.shape:
            raise ValueError(other_kind(current, stored, path))
        return moved(stored, current.device, current.dtype)
    if isinstance(stored, Tensor) and not stored.ndim:
        stored = stored.item() if not stored.is_meta else 0
    if isinstance(current, int | float) and not isinstance(stored, int | float):
        raise ValueError(other_kind(current, stored, path))  # noqa: TRY004 - the same
    return stored


def moved(stored: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a stored tensor where a run wants it; the outline of one, which has no memory, stays as it is."""
    return stored if stored.is_meta else stored.detach().to(device, dtype)


def exact(current: Any, stored: Any, path: str) -> Any:
    """Return a stored leaf of the very dtype, too; numbers excepted, which may be stored as either kind.

    Raises:
        ValueError: a leaf of another kind, shape or dtype.
    """
    leaf = converted(current, stored, path)
    if isinstance(current, Tensor) and isinstance(stored, Tensor) and current.ndim and current.dtype != stored.dtype:
        raise ValueError(f"{path}: stored {stored.dtype}, expected {current.dtype}")
    if isinstance(current, str | None) and type(stored) is not type(current):
        raise ValueError(other_kind(current, stored, path))
    return leaf


def other_kind(current: Any, stored: Any, path: str) -> str:
    """Say what was stored and what was expected."""
    kinds_of = [f"a tensor {tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__ for v in (stored, current)]
    return f"{path}: stored {kinds_of[0]}, expected {kinds_of[1]}"
