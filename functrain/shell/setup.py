"""The first state of a shell, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from functrain import _scaler
from functrain._clock import Clock
from functrain._fold import Pipeline
from functrain._state import TrainState
from functrain._strict import strict_pipeline
from functrain._tree import FrozenMap
from functrain._wrapper import innermost
from functrain.hooks.precision import RULE, MixedPrecision
from functrain.shell.alike import check_alike
from functrain.shell.apply import Applier
from functrain.shell.distributed import Distributed, ranks_of
from functrain.shell.driver import Driver
from functrain.shell.models import Models
from functrain.shell.optimizers import Optimizers

GradScaler: TypeAlias = torch.amp.GradScaler


def build_driver(
    pipeline: Pipeline, models: Any, optimizers: Any, schedulers: Any, scaler: Any, strict: bool, seed: int
) -> Driver:
    """Check the combination, build every slot, and return a driver at its first state."""
    real_models = Models(models)
    real_optimizers = Optimizers(optimizers, schedulers, real_models)
    precision = _precision(pipeline)
    scaler = _enabled(scaler)
    if scaler is not None and (precision is None or not precision.scales):
        raise ValueError(_unused_scaler(precision))
    ranks = ranks_of(real_models.modules)
    state = _first_state(real_models, real_optimizers, precision, strict=strict).replace(rng=_rng(seed))
    if ranks is not None:
        check_alike(ranks, pipeline, state, real_optimizers)
        state = state.replace(rank=ranks.rank, world=ranks.world)
    if precision is not None and precision.scales:
        _check_scaled(real_models)
        state = state.replace(scaler=_scaler.created(precision.init_scale, real_optimizers.by_key))
    state = pipeline.prepared(state)
    if scaler is not None and precision is not None:
        state = _read(scaler, precision, state)
    applier = Applier(real_models, real_optimizers, scaler)
    runs = strict_pipeline(pipeline) if strict else pipeline
    return Driver(runs, applier, state, None if ranks is None else Distributed(runs, ranks, real_models.modules))


def _rng(seed: Any) -> torch.Tensor:
    """Return the seed of a run as a state holds it."""
    if type(seed) is not int or not -(2**63) <= seed < 2**63:
        msg = f"seed must be an int of 64 bits, got {seed!r}"
        raise TypeError(msg)
    return torch.tensor(seed, dtype=torch.int64, device="cpu")


def _precision(pipeline: Pipeline) -> MixedPrecision | None:
    """Return the pipeline's own MixedPrecision."""
    found = innermost(pipeline.member("precision"))
    return found if isinstance(found, MixedPrecision) else None


def _first_state(
    models: Models, optimizers: Optimizers, precision: MixedPrecision | None, *, strict: bool
) -> TrainState:
    """Return the state before any hook has been asked."""
    keys = optimizers.by_key
    return TrainState(
        params=models.params,
        buffers=models.buffers,
        grads=models.gradients(),
        clock=Clock(optimizer_steps=FrozenMap(dict.fromkeys(keys, 0))),
        stepped=FrozenMap(dict.fromkeys(keys, False)),
        hyper=optimizers.hyper(),
        donated=not strict,
        autocast=None if precision is None or precision.dtype is torch.float32 else precision.dtype,
        owners=optimizers.owners,
    )


def _enabled(scaler: Any) -> GradScaler | None:
    """Return the scaler if it scales at all.

    Raises:
        TypeError: something else with a ``step`` and an ``update``.
    """
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        msg = f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}"
        raise TypeError(msg)
    return scaler if scaler is not None and scaler.is_enabled() else None


def _unused_scaler(precision: MixedPrecision | None) -> str:
    have = "no MixedPrecision" if precision is None else f"MixedPrecision(precision={precision.dtype})"
    return (
        f"a GradScaler with {have} in the pipeline: nobody would scale the loss, though gradients were unscaled; "
        'add functrain.MixedPrecision(precision="float16") to the hooks, or leave the scaler out'
    )


def _check_scaled(models: Models) -> None:
    """Refuse parameters that loss scaling cannot serve.

    Raises:
        ValueError: fp16 parameters, or parameters on several types of device.
    """
    for key, name, leaf in models.places:
        if leaf.dtype is torch.float16 and leaf.requires_grad:
            msg = (
                f'state.params["{key}"]["{name}"] is float16: a scaled gradient could not be unscaled in it; '
                "keep parameters in float32 and let MixedPrecision cast the forward"
            )
            raise ValueError(msg)
    kinds = sorted({leaf.device.type for _, _, leaf in models.places})
    if len(kinds) > 1:
        msg = f"parameters on {' and '.join(kinds)}: one loss scale and one autocast serve one type of device"
        raise ValueError(msg)


def _read(scaler: GradScaler, precision: MixedPrecision, state: TrainState) -> TrainState:
    """Return the state with scale, tracker and rule as the user's scaler has them."""
    kept = scaler.state_dict()
    rule = {name: kept[name] for name in RULE if name in kept}
    slot = state.hooks[precision.name] | rule
    numbers = {"scale": float(scaler.get_scale()), "growth_tracker": int(kept["_growth_tracker"])}
    return state.replace(scaler=state.scaler | numbers).with_slot(precision.name, slot)
