"""Stepping the optimizers where they may, without a branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from functrain import _tree
from functrain._fold import Pipeline
from functrain._gradients import non_finite
from functrain._owners import Owners
from functrain._select import Flag, both, either, negate, select
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.hooks.precision import all_overflowed
from functrain.pure.numbers import tensored


def part(tensors: FrozenMap[Any], owners: Owners, key: str) -> FrozenMap[Any]:
    """Return the tensors that an optimizer holds, by model and name."""
    found: dict[str, dict[str, Tensor]] = {}
    for model, name in owners.table[key]:
        found.setdefault(model, {})[name] = tensors[model][name]
    return FrozenMap(found)


def hyper_of(optimizers: Mapping[str, Any], opt: FrozenMap[Any]) -> FrozenMap[Any]:
    """Return the numbers of the optimizers as hooks see them: one group each, "0"."""
    found = {key: {"0": {name: opt[key][name] for name in pair.hyper}} for key, (pair, _) in optimizers.items()}
    # Copies: one tensor at two places of a state would make a compiled step compile again.
    return _tree.map_leaves(torch.clone, FrozenMap(found))


def numbers_of(state: FrozenMap[Any]) -> dict[str, Any]:
    """Return the numbers that an own optimizer keeps in its state, the count of steps left out."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor) and name != "step"}


def stepped(pipeline: Pipeline, optimizers: Mapping[str, Any], state: TrainState, going: Flag) -> TrainState:
    """Return the state after each optimizer that may step has stepped; the others' state and weights stay."""
    state = _rechecked(pipeline, state, going)
    found = state.scaler["found_inf"] if state.scaler else dict.fromkeys(optimizers, False)
    flags: dict[str, Flag] = {}
    for key, (pair, _) in optimizers.items():
        flags[key] = both(going, negate(found[key]))
        state = _stepped_one(key, pair, state, flags[key])
    return tensored(state.replace(stepped=FrozenMap(flags)), state.rng.device)


def _stepped_one(key: str, pair: Any, state: TrainState, ok: Flag) -> TrainState:
    """Return the state after one optimizer; where it may not step, its gradients are zero and nothing is kept of it."""
    weights = part(state.params, state.owners, key)
    raw = part(state.grads, state.owners, key)
    # Zero before the arithmetic, not after: the backward of a differentiated step would turn 0 * nan into nan.
    grads = select(ok, lambda: raw, lambda: _tree.map_leaves(torch.zeros_like, raw))
    kept = state.opt[key]
    wanted = kept | state.hyper[key]["0"] if state.hyper[key]["0"] else kept
    new, memory = pair.step(grads, wanted, weights)
    memory = memory | {name: kept[name] for name in state.hyper[key]["0"]} if state.hyper[key]["0"] else memory
    new, memory = select(ok, lambda: (new, memory), lambda: (weights, kept))
    params = {model: state.params[model] | held for model, held in new.items()}
    return state.replace(params=state.params | params, opt=state.opt | {key: memory})


def _rechecked(pipeline: Pipeline, state: TrainState, going: Flag) -> TrainState:
    """Return the state with overflow judged again where a hook behind MixedPrecision may have caused it."""
    members = pipeline.claimants(Stage.DO_OPTIMIZER_STEP)
    judge = next((place for place, each in enumerate(members) if each.exclusive == "precision"), len(members))
    if not state.scaler or all(each.keeps_finite for each in members[judge + 1 :]):
        return state
    again = non_finite(state)
    old = state.scaler["found_inf"]
    found = {key: either(flag, both(going, again.get(key, False))) for key, flag in old.items()}
    state = state.replace(scaler=state.scaler | {"found_inf": FrozenMap(found)})
    verdict = {members[judge].name: all_overflowed(state)}
    stage = Stage.DO_OPTIMIZER_STEP
    return state.replace(vetoes=state.vetoes | {stage: state.vetoes[stage] | verdict})
