"""What a sweep can set: the numbers of a state that are nobody's weights, each under a short key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

import torch
from torch import Tensor

from functrain._fold import Pipeline
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain._wrapper import innermost

Path: TypeAlias = tuple[str, ...]
SEED = "seed"


def dials(state: TrainState) -> dict[str, Path]:
    """Return where each number lies that a sweep may set, by its key.

    ``hooks.NAME.NUMBER`` for what a hook keeps in its slot, ``opt.KEY.NUMBER`` for what an optimizer keeps in its
    state; of a lone optimizer the number alone is enough.

    >>> from functrain import ClipNorm, pure
    >>> init, _, _ = pure.train_step(lambda p, b, x: p["w"] * x, pure.sgd(0.1), ClipNorm(max_norm=1.0))
    >>> sorted(dials(init({"w": torch.zeros(())})))[:3]
    ['hooks.clip.max_norm', 'lr', 'opt.main.lr']
    """
    found = {".".join(("hooks", *path)): ("hooks", *path) for path in _numbers(state.hooks)}
    rules = {key: list(held["0"]) for key, held in state.hyper.items()}
    found |= {f"opt.{key}.{name}": ("opt", key, name) for key, names in rules.items() for name in names}
    if len(rules) == 1:
        ((key, names),) = rules.items()
        found |= {name: ("opt", key, name) for name in names}
    return found


def _numbers(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of the numbers in nested mappings; names of weights, with dots in them, are no keys."""
    for name, held in tree.items():
        if not str(name).isidentifier():
            continue
        if isinstance(held, Mapping):
            yield from _numbers(held, (*path, name))
        elif isinstance(held, Tensor) and held.ndim == 0:
            yield (*path, name)


def dialled(state: TrainState, lane: Mapping[str, Any], pipeline: Pipeline | None = None) -> TrainState:
    """Return a state in which the numbers of a lane are set.

    Args:
        state: as ``init`` returns it.
        lane: values by key; "seed" sets ``state.rng``.
        pipeline: what the hooks' values are checked against, if known.

    Raises:
        KeyError: an unknown key; lists what there is.
        TypeError: a value of another kind.
        ValueError: NaN, or out of a hook's bounds (pydantic's ValidationError).
    """
    known = dials(state)
    for key, value in lane.items():
        if key == SEED:
            state = state.replace(rng=_as_leaf(key, value, state.rng))
        elif key not in known:
            raise KeyError(_unknown(key, known))
        else:
            state = _set(state, key, known[key], value)
            _check(state, pipeline, known[key])
    return state


def _set(state: TrainState, key: str, path: Path, value: Any) -> TrainState:
    """Return the state with one number set; an optimizer's is shown to hooks as well."""
    field, *inside = path
    held = getattr(state, field)
    state = state.replace(**{field: _placed(held, inside, leaf := _as_leaf(key, value, _at(held, inside)))})
    if field != "opt":
        return state
    optimizer, name = inside
    return state.replace(hyper=_placed(state.hyper, [optimizer, "0", name], leaf))


def _at(tree: Any, path: list[str]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def _placed(tree: FrozenMap[Any], path: list[str], leaf: Tensor) -> FrozenMap[Any]:
    """Return nested mappings with another leaf at a path."""
    name, *rest = path
    return tree | {name: _placed(tree[name], rest, leaf) if rest else leaf}


def _as_leaf(key: str, value: Any, leaf: Tensor) -> Tensor:
    """Return a value as the kind of tensor that it replaces."""
    kinds = {torch.bool: (bool, "True or False"), torch.int64: (int, "a whole number")}
    kind, told = kinds.get(leaf.dtype, (float, "a number"))
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        msg = f"over[{key!r}] must hold {told} in each lane, got {value!r}"
        raise TypeError(msg)
    if isinstance(value, float) and math.isnan(value):
        msg = f"over[{key!r}] holds NaN"
        raise ValueError(msg)
    return torch.tensor(value, dtype=leaf.dtype, device=leaf.device)


def _check(state: TrainState, pipeline: Pipeline | None, path: Path) -> None:
    """Refuse what the hook itself would refuse in that place of its configuration."""
    field, name, *inside = path
    hook = innermost(pipeline[name]) if pipeline is not None and field == "hooks" else None
    if hook is not None and len(inside) == 1 and inside[0] in type(hook).model_fields:
        type(hook).model_validate({**dict(hook), inside[0]: _at(state.hooks[name], inside).item()})


def _unknown(key: str, known: Mapping[str, Path]) -> str:
    """Say what can be swept, and what was probably meant."""
    names = [SEED, *known]
    close = get_close_matches(str(key), names, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f"nothing to sweep under {key!r}{meant} There are {sorted(names)}"
