"""Loss scaling as pure functions over the state: the trajectory of ``torch.amp.GradScaler``, with a floor and a cap.

The numbers are Python's in the shell, so no device is ever asked for the scale. The scale is rounded to float32 after
each change, which is what ``GradScaler`` keeps.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from functrain._clock import any_of
from functrain._gradients import multiplied
from functrain._select import Flag, Number, maximum, minimum, select
from functrain._state import TrainState
from functrain._tree import FrozenMap


def created(scale: Number, optimizers: Mapping[str, Any]) -> FrozenMap[Any]:
    """Return the scaler part of a state.

    >>> created(4.0, {"main": ()})
    FrozenMap({'scale': 4.0, 'growth_tracker': 0, 'found_inf': FrozenMap({'main': False})})
    """
    return FrozenMap({"scale": scale, "growth_tracker": 0, "found_inf": dict.fromkeys(optimizers, False)})


def unscaled(state: TrainState) -> TrainState:
    """Return the state with gradients divided by the loss scale; as it is without a scaler."""
    return multiplied(state, reciprocal(state.scaler["scale"])) if state.scaler else state


def rescaled(state: TrainState) -> TrainState:
    """Return the state with gradients multiplied by the loss scale: what kept gradients need before more are added."""
    return multiplied(state, state.scaler["scale"]) if state.scaler else state


def reciprocal(scale: Number) -> Number:
    """Return 1/scale, rounded to float32 as GradScaler does; infinity for 0: gradients are then seen not to be finite.

    >>> reciprocal(4.0), reciprocal(0.0)
    (0.25, inf)
    """
    if isinstance(scale, Tensor):
        return as_float32(scale.double().reciprocal())
    return as_float32(1.0 / scale) if scale else float("inf")


def as_float32(number: Number) -> Number:
    """Return a double rounded to float32.

    >>> as_float32(0.1)
    0.10000000149011612
    """
    if isinstance(number, Tensor):
        return number.to(torch.float32).double()
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return float("inf")


def settled(state: TrainState, rule: Mapping[str, Number]) -> TrainState:
    """Return the state after its scaler has heard what became of the step.

    Any overflow backs off; a step grows the tracker and, at the interval, the scale; a finite step that some other
    hook vetoed changes neither. The order of roundings is that of ``torch._amp_update_scale_``.

    Args:
        state: with ``scaler["found_inf"]`` and ``stepped`` of this update.
        rule: ``growth_factor``, ``backoff_factor``, ``growth_interval``, ``min_scale``, ``max_scale``.
    """
    if not state.scaler:
        return state
    scale, tracker = state.scaler["scale"], state.scaler["growth_tracker"]
    scale, tracker = select(
        any_of(state.scaler["found_inf"]),
        lambda: (_bounded(scale * rule["backoff_factor"], rule), tracker * 0),
        lambda: select(any_of(state.stepped), lambda: _grown(scale, tracker, rule), lambda: (scale, tracker)),
    )
    return state.replace(scaler=state.scaler | {"scale": scale, "growth_tracker": tracker})


def _bounded(scale: Number, rule: Mapping[str, Number]) -> Number:
    """Return a new scale as GradScaler would keep it, within floor and cap."""
    return maximum(minimum(as_float32(scale), rule["max_scale"]), rule["min_scale"])


def _grown(scale: Number, tracker: Number, rule: Mapping[str, Number]) -> tuple[Number, Number]:
    """Return scale and tracker after a step without overflow."""
    count = tracker + 1
    due: Flag = count == rule["growth_interval"]  # pyright: ignore[reportAssignmentType]
    return select(due, lambda: (_larger(scale, rule), count * 0), lambda: (scale, count))


def _larger(scale: Number, rule: Mapping[str, Number]) -> Number:
    """Return the scale times the growth factor, or as it is where that is infinite."""
    larger = as_float32(scale * rule["growth_factor"])
    infinite: Flag = larger == float("inf")  # pyright: ignore[reportAssignmentType]
    return select(infinite, lambda: scale, lambda: _bounded(larger, rule))
