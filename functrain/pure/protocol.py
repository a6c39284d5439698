"""What the engine takes for an optimizer, and for a loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from functrain._tree import FrozenMap, thaw

Tree: TypeAlias = Any


class Optimizer(NamedTuple):
    """A pure optimizer: ``init(params)`` builds its state, ``update(grads, state, params)`` gives updates to add.

    ``step(grads, state, params)`` gives the new parameters themselves, rounded as ``torch.optim`` rounds them: adding
    an update afterwards would round once more.

    Attributes:
        init: ``params -> state``.
        update: ``grads, state, params -> updates, state``.
        step: ``grads, state, params -> params, state``.
        hyper: the numbers in the state that a schedule or a sweep may change.

    >>> from functrain import pure
    >>> pure.sgd(0.1).hyper
    ('lr', 'weight_decay')
    """

    init: Callable[[Tree], Tree]
    update: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
    step: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
    hyper: tuple[str, ...] = ()


def takes_noise(loss_fn: Callable[..., Any]) -> bool:
    """Tell whether a loss takes ``rng`` as a fourth argument."""
    declared = getattr(loss_fn, "takes_noise", None)
    if declared is not None:
        return bool(declared)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [each for each in inspect.signature(loss_fn).parameters.values() if each.kind in kinds]
    return len(positional) >= len(("params", "buffers", "batch", "rng"))


def handed_out(tensors: FrozenMap[Any]) -> dict[str, Any]:
    """Return fresh plain dicts for a loss: of one model its own names, of several one dict per model.

    >>> handed_out(FrozenMap({"main": {"w": 1}})), handed_out(FrozenMap({"a": {"w": 1}, "b": {}}))
    ({'w': 1}, {'a': {'w': 1}, 'b': {}})
    """
    return thaw(tensors["main"] if set(tensors) == {"main"} else tensors)


def taken_in(tensors: Mapping[str, Any]) -> FrozenMap[Any]:
    """Return tensors by model key; a mapping of names to tensors is that of the model "main"."""
    nested = len(tensors) > 0 and all(isinstance(held, Mapping) for held in tensors.values())
    return FrozenMap(tensors if nested else {"main": dict(tensors)})
