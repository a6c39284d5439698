"""The first state of a pure run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import nn

from functrain import _scaler, _tree
from functrain._clock import Clock
from functrain._fold import Pipeline
from functrain._owners import Owners
from functrain._restriction import chosen
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain._wrapper import innermost
from functrain.hooks.precision import MixedPrecision
from functrain.pure.numbers import tensored
from functrain.pure.protocol import taken_in
from functrain.pure.stepping import hyper_of, part


class Start(NamedTuple):
    """What a run starts from, by model key and name.

    Attributes:
        params: all parameters.
        buffers: all buffers.
        trained: the parameters that have a gradient.
        seed: of the noise.
    """

    params: FrozenMap[Any]
    buffers: FrozenMap[Any]
    trained: FrozenMap[Any]
    seed: int

    def without(self, places: Collection[tuple[str, str]]) -> Start:
        """Return a start at which some parameters, given as (model key, name), have no gradient."""
        kept = {
            model: {name: leaf for name, leaf in held.items() if (model, name) not in places}
            for model, held in self.trained.items()
        }
        return self._replace(trained=FrozenMap(kept))


def started(params: Mapping[str, Any], buffers: Mapping[str, Any] | None, seed: int, *, copies: bool) -> Start:
    """Return what a run starts from; parameters and buffers as copies if so wished."""
    weights = taken_in(params)
    held = taken_in(buffers) if buffers else FrozenMap(dict.fromkeys(weights, FrozenMap[Any]()))
    trained = _trained(weights)
    if copies:
        weights, held = _tree.map_leaves(_copied, weights), _tree.map_leaves(_copied, held)
    return Start(weights, held, trained, seed)


def first_state(pipeline: Pipeline, optimizers: Mapping[str, Any], start: Start) -> TrainState:
    """Return the state before the first batch, with every slot built and every number a tensor.

    Raises:
        ValueError: a parameter that two optimizers select.
    """
    weights, held, trained, seed = start
    owners = _owners(optimizers, trained)
    loss = torch.full((), float("nan"), dtype=loss_dtype(weights), device=_device(weights))
    state = TrainState(
        loss=loss,
        raw_loss=loss.clone(),
        params=weights,
        buffers=held,
        grads=_tree.map_leaves(torch.zeros_like, trained),
        clock=Clock(optimizer_steps=FrozenMap(dict.fromkeys(optimizers, 0))),
        stepped=FrozenMap(dict.fromkeys(optimizers, False)),
        rng=torch.tensor(seed, dtype=torch.int64, device=_device(weights)),
        owners=owners,
    )
    state = _with_precision(pipeline, optimizers, state)
    opt = {key: pair.init(part(weights, owners, key)) for key, (pair, _) in optimizers.items()}
    opt = tensored(FrozenMap(opt), state.rng.device)
    state = state.replace(opt=opt, hyper=hyper_of(optimizers, opt))
    # Each leaf a tensor of its own: one tensor at two places would make a compiled step compile again.
    return _tree.map_leaves(torch.clone, tensored(pipeline.prepared(state), state.rng.device))


def _trained(weights: FrozenMap[Any]) -> FrozenMap[Any]:
    """Return the parameters that are trained: all but the frozen ones of a module, ``requires_grad=False``."""
    return FrozenMap(
        {model: {name: leaf for name, leaf in held.items() if not _frozen(leaf)} for model, held in weights.items()}
    )


def _frozen(leaf: torch.Tensor) -> bool:
    return isinstance(leaf, nn.Parameter) and not leaf.requires_grad


def _copied(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.detach().clone()


def _device(weights: FrozenMap[Any]) -> torch.device:
    """Return where the parameters are."""
    first = next(iter(_tree.leaves(weights)), None)
    return torch.device("cpu") if first is None else first.device


def loss_dtype(weights: FrozenMap[Any]) -> torch.dtype:
    """Return the dtype that losses are kept in: that of the parameters, at least float32."""
    kinds = [leaf.real.dtype for leaf in _tree.leaves(weights) if leaf.is_floating_point() or leaf.is_complex()]
    return reduce(torch.promote_types, kinds, torch.float32)


def _with_precision(pipeline: Pipeline, optimizers: Mapping[str, Any], state: TrainState) -> TrainState:
    """Return the state with autocast and scaler as MixedPrecision wants them."""
    precision = innermost(pipeline.member("precision"))
    if not isinstance(precision, MixedPrecision) or precision.dtype is torch.float32:
        return state
    scaler = _scaler.created(precision.init_scale, optimizers) if precision.scales else state.scaler
    return state.replace(autocast=precision.dtype, scaler=scaler)


def _owners(optimizers: Mapping[str, Any], weights: FrozenMap[Any]) -> Owners:
    """Return which optimizer selects which parameter."""
    table: dict[str, list[tuple[str, str]]] = {key: [] for key in optimizers}
    for model, names in weights.items():
        for name in names:
            takers = [key for key, (_, selector) in optimizers.items() if chosen(selector, model, name)]
            if len(takers) > 1:
                msg = f'optimizers {takers} all select state.params["{model}"]["{name}"]; it would be updated twice'
                raise ValueError(msg)
            for key in takers:
                table[key].append((model, name))
    return Owners(table)
