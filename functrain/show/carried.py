"""The state of a recorded run in the form that another pipeline needs."""

from __future__ import annotations

from typing import Any

import torch

from functrain import _tree
from functrain._fold import Pipeline
from functrain._hook import Hook
from functrain._state import TrainState

FRESH = ("vetoes", "metrics", "limits", "donated")
"""Fields whose structure belongs to the pipeline."""


def carried(recorded: Pipeline, pipeline: Pipeline, old: TrainState, fresh: TrainState) -> TrainState:
    """Return the old state for another pipeline: equal hooks keep their slots, all others start anew.

    If accumulation or precision are others, an open window is emptied: its gradients are in units of the old ones.

    Args:
        recorded: the pipeline that the old state belongs to.
        pipeline: the other one.
        old: as the recorded run was.
        fresh: as the other pipeline would start on these weights.

    >>> from functrain import ClipNorm, fold
    >>> one, two = fold(ClipNorm(max_norm=1.0)), fold(ClipNorm(max_norm=0.5))
    >>> states = [each.prepared(TrainState()) for each in (one, two)]
    >>> carried(one, two, *states).hooks["clip"]
    FrozenMap({'max_norm': 0.5})
    """
    kept = {each.name for each in pipeline if _is_in(recorded, each)}
    slots = {each.name: (old if each.name in kept else fresh).hooks[each.name] for each in pipeline}
    state = old.replace(hooks=slots, **{name: getattr(fresh, name) for name in FRESH})
    if not _same_family(recorded, pipeline, "precision"):
        state = state.replace(autocast=fresh.autocast, scaler=fresh.scaler)
    if all(_same_family(recorded, pipeline, family) for family in ("precision", "accumulate")):
        return state
    return _emptied(state, pipeline)


def _emptied(state: TrainState, pipeline: Pipeline) -> TrainState:
    """Return the state with nothing in its window, and nothing that hooks remember of it."""
    slots = {each.name: each.reset(state.hooks[each.name]) for each in pipeline}
    grads = _tree.map_leaves(torch.zeros_like, state.grads)
    return state.replace(hooks=slots, grads=grads, window=state.window.emptied())


def _same_family(one: Pipeline, other: Pipeline, family: str) -> bool:
    """Tell whether two pipelines have the same member of a family, or none."""
    ours, theirs = one.member(family), other.member(family)
    return _equal(ours, theirs)


def _is_in(recorded: Pipeline, hook: Hook) -> bool:
    return any(each.name == hook.name and _equal(each, hook) for each in recorded)


def _equal(one: Any, other: Any) -> bool:
    """Compare two hooks; what cannot be compared differs."""
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - a hook of one's own may hold anything
        return False
