"""What is taken for an optimizer: an own one, or a pair of functions from elsewhere, made to keep to the rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from functrain import _tree
from functrain._errors import StructureError
from functrain._tree import FrozenMap, freeze, thaw
from functrain.pure.errors import explained
from functrain.pure.protocol import Optimizer

PAIR = 2


def as_optimizers(given: Any) -> dict[str, tuple[Optimizer, Any]]:
    """Return optimizers by key, each with the selector of its parameters.

    Raises:
        TypeError: something without ``init`` and ``update``, or a mapping whose values are no (pair, selector).

    >>> from functrain import pure
    >>> list(as_optimizers(pure.sgd(0.1)))
    ['main']
    """
    if not isinstance(given, Mapping):
        return {"main": (_optimizer(given), "*")}
    found: dict[str, tuple[Optimizer, Any]] = {}
    for key, value in cast("Mapping[str, Any]", given).items():
        if _is_pair(value) or not isinstance(value, tuple) or len(cast("tuple[Any, ...]", value)) != PAIR:
            msg = (
                f"optimizer {key!r} needs a selector of its parameters, (optimizer, selector), like "
                f'(functrain.pure.adamw(1e-3), lambda model, name: model == "main"); got {_kind(value)}'
            )
            raise TypeError(msg)
        found[key] = (_optimizer(value[0]), value[1])
    return found


def _optimizer(given: Any) -> Optimizer:
    """Return an own optimizer as it is, a pair adapted."""
    if isinstance(given, Optimizer):
        return given
    if _is_pair(given):
        return adapted(given.init, given.update)
    if type(given) is tuple and len(bare := cast("tuple[Any, ...]", given)) == PAIR and all(map(callable, bare)):
        return adapted(*bare)
    msg = (
        f"an optimizer is a pair of init(params) and update(grads, state, params), got {_kind(given)}; "
        "torch.optim optimizers belong into functrain.Shell, here write functrain.pure.adamw(1e-3)"
    )
    raise TypeError(msg)


def _is_pair(given: object) -> bool:
    """Tell an object with both functions; a class is none."""
    methods = (getattr(given, name, None) for name in ("init", "update"))
    return not isinstance(given, type) and all(map(callable, methods))


def _kind(given: Any) -> str:
    return given.__name__ if isinstance(given, type) else type(given).__name__


def adapted(init: Callable[..., Any], update: Callable[..., Any]) -> Optimizer:
    """Return an optimizer made of ``init(params)`` and ``update(grads, state, params) -> updates, state``.

    The functions get plain dicts. An ``update`` that can write in place (TorchOpt's does, unless told otherwise) is
    told not to; any other gets copies, so that a step that is vetoed afterwards has changed nothing.

    >>> import torch
    >>> descent = adapted(lambda params: {}, lambda grads, state, params: (_tree.map_leaves(torch.neg, grads), state))
    >>> ones = FrozenMap({"main": {"w": torch.ones(1)}})
    >>> descent.step(ones, descent.init(ones), ones)[0]["main"]["w"]
    tensor([0.])
    """
    call = _convention(update)

    def updates_of(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, new = explained("the optimizer", call, thaw(grads), thaw(state), thaw(params))
        return _aligned(updates, params), _same_structure(freeze(new), state)

    def step(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = updates_of(grads, state, params)
        return _tree.map_leaves(_moved, params, updates), state

    def first(params: Any) -> Any:
        return freeze(init(thaw(params)))

    return Optimizer(first, updates_of, step)


def _convention(update: Callable[..., Any]) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Return how an ``update`` is called: parameters by name if it takes them by name only, never in place."""
    try:
        known = inspect.signature(update).parameters
    except (TypeError, ValueError):  # a function without a signature, as of a compiled extension
        known = dict[str, Any]()
    options = {"inplace": False} if "inplace" in known else {}
    prepared = _as_is if options else _copied
    if "params" in known and known["params"].kind is inspect.Parameter.KEYWORD_ONLY:
        return lambda grads, state, params: update(*prepared((grads, state)), params=prepared(params), **options)
    return lambda grads, state, params: update(*prepared((grads, state, params)), **options)


def _as_is(tree: Any) -> Any:
    return tree


def _copied(tree: Any) -> Any:
    """Return a tree of copies."""
    return _tree.map_leaves(_copy, tree)


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _moved(param: Tensor, update: Tensor) -> Tensor:
    """Return a parameter after an update, in its own dtype."""
    return (param + update).to(param.dtype)


def _aligned(updates: Any, params: FrozenMap[Any]) -> FrozenMap[Any]:
    """Return updates in the order of the parameters.

    Raises:
        StructureError: a parameter without an update of its shape.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for model, held in params.items():
        given: Any = cast("Mapping[str, Any]", updates).get(model, {}) if isinstance(updates, Mapping) else {}
        for name, leaf in held.items():
            if name not in given or getattr(given[name], "shape", None) != leaf.shape:
                msg = (
                    "update of the optimizer must return (updates, state), updates of the names and shapes of grads; "
                    f'there is none of shape {tuple(leaf.shape)} for ["{model}"]["{name}"]'
                )
                raise StructureError(msg)
            found.setdefault(model, {})[name] = given[name]
    return FrozenMap(found)


def _same_structure(new: Any, state: Any) -> Any:
    """Return the new state of an optimizer.

    Raises:
        StructureError: it is not built like the one before; a step could not be undone then.
    """
    if not _tree.alike(new, state):
        msg = (
            "the optimizer's state changes its structure: init(params) must build all of it, zeros for what comes "
            f"later; it was {_tree.structure(state)} and became {_tree.structure(new)}"
        )
        raise StructureError(msg)
    return new
