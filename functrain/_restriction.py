"""A state in which only some parameters are seen, and the way back."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase, translate
from typing import Any, TypeAlias

from functrain._state import TrainState
from functrain._tree import FrozenMap

Selector: TypeAlias = str | Callable[[str, str], bool]
"""A pattern over parameter names, or ``(model_key, name) -> bool``."""

Chooser: TypeAlias = Selector | re.Pattern[str]
"""A selector, or its compiled form."""


def compiled(selector: Selector) -> Chooser:
    """Return what :func:`chosen` takes instead of a pattern where ``torch.compile`` looks on.

    >>> chosen(compiled("*.bias"), "main", "0.bias")
    True
    """
    return re.compile(translate(selector)) if isinstance(selector, str) else selector


def chosen(selector: Chooser, model_key: str, name: str) -> bool:
    """Tell whether a selector takes a parameter.

    >>> chosen("*.bias", "main", "0.bias"), chosen(lambda model, name: model == "teacher", "main", "0.bias")
    (True, False)
    """
    if isinstance(selector, re.Pattern):
        return selector.match(name) is not None
    return fnmatchcase(name, selector) if isinstance(selector, str) else selector(model_key, name)


def restricted(state: TrainState, selector: Chooser) -> TrainState:
    """Return the state with the selected parameters and gradients only."""
    return state.replace(params=_part(state.params, selector), grads=_part(state.grads, selector))


def _part(tensors: FrozenMap[Any], selector: Chooser) -> FrozenMap[Any]:
    """Return the selected part of a mapping, made once per mapping: its identity is what averages cache by."""

    def build() -> FrozenMap[Any]:
        return FrozenMap(
            {
                model: FrozenMap({name: leaf for name, leaf in held.items() if chosen(selector, model, name)})
                for model, held in tensors.items()
            }
        )

    return tensors.derived(("part", selector), build)


def merged(state: TrainState, before: TrainState, after: TrainState) -> TrainState:
    """Return ``after`` with the parameters and gradients that were hidden from it."""
    return after.replace(
        params=_whole(state.params, before.params, after.params),
        grads=_whole(state.grads, before.grads, after.grads),
    )


def _whole(whole: FrozenMap[Any], before: FrozenMap[Any], after: FrozenMap[Any]) -> FrozenMap[Any]:
    """Put a changed part back into the whole, which keeps its order and, unchanged, its identity."""
    if after is before:
        return whole
    return whole | {model: whole[model] | held for model, held in after.items()}
