"""The call of a loss function, and what it may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from functrain import _tree
from functrain._errors import PurityError, StructureError
from functrain._tree import FrozenMap
from functrain.pure.errors import explained
from functrain.pure.protocol import handed_out, taken_in

LOSS_AND_BUFFERS = 2


def called(
    loss_fn: Callable[..., Any], params: FrozenMap[Any], buffers: FrozenMap[Any], batch: Any, *noise: Any
) -> tuple[Tensor, FrozenMap[Any]]:
    """Return the loss and the buffers after it; a loss function gets plain dicts, and copies of the buffers.

    Raises:
        KeyError: it looked up a name that is neither a parameter nor a buffer.
        TypeError: it returned something else than a real tensor, or than that and a mapping.
        ValueError: the loss is no scalar.
        StructureError: other buffers come back than went in.
        PurityError: it changed buffers and did not return them.

    >>> weights = FrozenMap({"main": {"w": torch.ones(2)}})
    >>> called(lambda params, buffers, batch: params["w"].sum() * batch, weights, FrozenMap({"main": {}}), 3.0)[0]
    tensor(6.)
    """
    names, copies = handed_out(params), _tree.map_leaves(torch.clone, buffers)
    held = handed_out(copies)
    try:
        result = explained("the loss", loss_fn, names, held, batch, *noise)
    except KeyError as error:
        _tell_names(error, {"params": names, "buffers": held})
        raise
    loss, given = _taken_apart(result)
    if given:
        return loss, _like(taken_in(given), buffers)
    _check_unwritten(copies, taken_in(held))
    return loss, buffers


def _tell_names(error: KeyError, held: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise the error once more with the names there are, if it is about one that is not there."""
    key = error.args[0] if error.args else None
    if not isinstance(key, str) or " " in key or any(key in _all_names(names) for names in held.values()):
        return
    there = "; ".join(f"{what} are {sorted(_all_names(names))}" for what, names in held.items())
    msg = f"the loss looks up {key!r}, which is no name of this run: {there}"
    raise KeyError(msg) from error


def _all_names(tensors: Mapping[str, Any]) -> list[str]:
    """Return model keys and names."""
    inner = (name for held in tensors.values() if isinstance(held, dict) for name in cast("dict[str, Any]", held))
    return [*tensors, *inner]


def _taken_apart(result: Any) -> tuple[Tensor, Mapping[str, Any] | None]:
    """Return the loss and, if they were returned, the buffers."""
    if not isinstance(result, tuple):
        return _scalar(result), None
    parts = cast("tuple[Any, ...]", result)
    if len(parts) != LOSS_AND_BUFFERS or not isinstance(parts[1], Mapping):
        msg = (
            f"the loss function returned ({', '.join(map(_kind, parts))}): return the loss, or (loss, buffers) with "
            "buffers {name: tensor}; a number that is only to be looked at becomes a buffer of its own"
        )
        raise TypeError(msg)
    return _scalar(parts[0]), cast("Mapping[str, Any]", parts[1])


def _scalar(loss: Any) -> Tensor:
    """Return a loss that has a gradient, or raise."""
    if not isinstance(loss, Tensor):
        msg = f"the loss function returned {_kind(loss)}: return the loss as a 0-d tensor, or (loss, buffers)"
        raise TypeError(msg)
    if not loss.is_floating_point():
        msg = f"the loss is {_kind(loss)}, which has no gradient: return a real floating-point number"
        raise TypeError(msg)
    if loss.ndim:
        msg = f"the loss is {_kind(loss)}, and a gradient needs one number: return loss.mean() or loss.sum()"
        raise ValueError(msg)
    return loss


def _check_unwritten(before: FrozenMap[Any], after: FrozenMap[Any]) -> None:
    """Refuse a loss that replaced or wrote into the copies it was handed: what it wrote would be lost."""
    for key, held in before.items():
        for name, leaf in held.items():
            found = after[key].get(name)
            if found is not leaf or (not torch.compiler.is_dynamo_compiling() and leaf._version):
                msg = (
                    f"the loss changes buffer {name!r} of model {key!r} and does not return it: return (loss, buffers)"
                )
                raise PurityError(msg)


def _like(given: FrozenMap[Any], buffers: FrozenMap[Any]) -> FrozenMap[Any]:
    """Return buffers of the same names, shapes, dtypes and devices as they had, or raise."""
    for key, held in buffers.items():
        found: Mapping[str, Any] = given.get(key, {})
        if found.keys() != held.keys():
            lost, new = sorted(held.keys() - found.keys()), sorted(found.keys() - held.keys())
            _refuse(key, f"without {lost} and with {new} beyond them: return every buffer, {{**buffers, ...}}")
        for name, leaf in held.items():
            if _traits(found[name]) != _traits(leaf):
                _refuse(key, f"with {name!r} as {_kind(found[name])}: it went in as {_kind(leaf)} and has to stay that")
    if unknown := sorted(given.keys() - buffers.keys()):
        _refuse(unknown[0], "which is no model of this run")
    return FrozenMap({key: given.get(key, {}) for key in buffers})


def _refuse(key: str, how: str) -> NoReturn:
    msg = f"the loss returns the buffers of model {key!r} {how}"
    raise StructureError(msg)


def _traits(leaf: Any) -> tuple[Any, ...]:
    """Return what must not change of a tensor."""
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else ()


def _kind(value: Any) -> str:
    """Name a value's type, with shape, dtype and device of a tensor."""
    if isinstance(value, Tensor):
        return f"a Tensor of shape {tuple(value.shape)}, {value.dtype}, on {value.device}"
    return type(value).__name__
