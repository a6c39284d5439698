"""Donated states: the results of a step are written over what it was given."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from functrain import _tree
from functrain._state import TrainState

DONATED_AND_DIFFERENTIABLE = (
    "a donated state is overwritten by the step, and differentiable=True needs it for the backward: "
    "pass state.replace(donated=False), or leave differentiable=True out"
)


def overwritten(old: TrainState, new: TrainState) -> TrainState:
    """Return the new state in the storage of the old one, which is gone afterwards.

    All results are complete before the first is written, since a hook may hand one leaf on as another. A compiler sees
    that most of these copies are none, and computes right into the storage; without one a step needs more memory so.

    >>> import torch
    >>> old = TrainState(loss=torch.tensor(1.0), donated=True)
    >>> overwritten(old, old.replace(loss=torch.tensor(2.0))).loss is old.loss, old.loss
    (True, tensor(2.))
    """
    results = _tree.map_leaves(_complete, new.replace(donated=True), old)
    return _tree.map_leaves(_written, old, results)


def _complete(leaf: Any, before: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) and leaf is not before else leaf


def _written(before: Any, result: Any) -> Any:
    return before.copy_(result) if isinstance(before, Tensor) and before is not result else result
