"""Gradient accumulation over a window of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from functrain._collectives import gathered
from functrain._gradients import multiplied
from functrain._hook import Hook, Name, Outcome, Stages, Writes
from functrain._select import Flag, Number, both, either, negate, select
from functrain._stage import UPDATE_STAGES, Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain._verdict import checked_weight
from functrain._window import Window


class Accumulate(Hook):
    """One step per window of ``every`` micro-batches, as if they had been one batch.

        gradient = sum_i g_i / entered           without weights
        gradient = sum_i w_i g_i / sum_i w_i     with weights (tokens, atoms, samples)

    The window counts presented micro-batches, so it always closes, dropped ones included; only those that entered
    count in the mean. The hook does not touch the loss: the interpreter divides it, regularisers included.

    Stages: BEFORE_BATCH keeps the gradients of an open window; DO_BACKWARD puts a weight into units that fp16 can hold;
    DO_OPTIMIZER_STEP corrects the mean and waits; AFTER_OPTIMIZER_STEP closes. Writes ``window`` and ``grads``.
    Vetoes: clearing and stepping in mid-window.

    Attributes:
        every: micro-batches per window, at least 1.
        weight: ``weight(batch)`` of a micro-batch, finite and at least 0; or give it to
            ``shell.update(loss, weight=)``; never both.
        partial: what becomes of a window that the epoch leaves open: ``"flush"`` steps, ``"carry"`` goes on in the
            next epoch, ``"drop"`` discards.

    >>> Accumulate(every=4)
    Accumulate(every=4)

    See also: :func:`functrain.every`, which counts executed steps.
    """

    every: Annotated[int, Field(ge=1)]
    weight: Callable[[Any], Number] | None = None
    partial: Literal["flush", "carry", "drop"] = "flush"
    priority: int = 10
    name: Name = "accumulate"
    stages: Stages = UPDATE_STAGES
    writes: Writes = frozenset({"window", "grads"})
    exclusive: str | None = "accumulate"

    @property
    def may_drop(self) -> bool:
        """Never: at DO_BACKWARD it only looks at the weight."""
        return False

    def init(self, state: TrainState) -> Any:  # noqa: ARG002 - needs nothing of it
        """Keep the length, the position and the unit of weights."""
        return FrozenMap({"every": self.every, "position": 0, "unit": 0.0})

    def reset(self, slot: Any) -> Any:
        """Start at the first micro-batch again; the unit of weights stays."""
        return slot | {"position": 0}

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Keep, weigh, wait, close."""
        match stage:
            case Stage.BEFORE_BATCH:
                return self._present(state)
            case Stage.DO_BACKWARD:
                return Outcome(self._weigh(state), True, state.loss)
            case Stage.DO_OPTIMIZER_STEP:
                boundary, filled = state.window.boundary, _positive(state.window.total)
                state = _corrected(state, both(both(boundary, filled), negate(will_skip)))
                return Outcome(state, both(boundary, either(filled, will_skip)), state.loss)
            case _:
                return Outcome(self._close(state), True, state.loss)

    def _present(self, state: TrainState) -> Outcome:
        """Count a micro-batch in and say whether it completes the window."""
        slot, window = state.hooks[self.name], state.window
        first, position = slot["position"] == 0, slot["position"] + 1
        boundary = position >= slot["every"]
        if self.partial == "flush":
            boundary = either(boundary, window.last)
        # A number of its own: one tensor at two places of a state would make a compiled step compile again.
        window = window.changed(boundary=boundary, divisor=slot["every"] + 0)
        if self.weight is not None:
            window = window.weighed(checked_weight(self.weight(state.batch)))
        slots = state.hooks | {self.name: slot | {"position": position}}
        return Outcome(state.replace(window=window, hooks=slots), first, state.loss)

    def _weigh(self, state: TrainState) -> TrainState:
        """Divide a weight by a fixed power of two near the first one: times a loss scale it would overflow."""
        window = state.window
        if window.weighted is False or not state.scaler:
            return state
        slot = state.hooks[self.name]
        unit = select(_positive(slot["unit"]), lambda: slot["unit"], lambda: power_of_two(_largest(state)))
        weight = select(window.weighted, lambda: window.weight / unit, lambda: window.weight)
        unit = select(window.weighted, lambda: unit, lambda: slot["unit"])
        state = state.replace(window=window.replace(weight=weight))
        return state.with_slot(self.name, slot | {"unit": unit})

    def _close(self, state: TrainState) -> TrainState:
        """Start a new window after a boundary."""
        if state.window.boundary is False:
            return state
        slot = state.hooks[self.name]
        position = select(state.window.boundary, lambda: 0, lambda: slot["position"])
        return state.with_slot(self.name, slot | {"position": position})


def _largest(state: TrainState) -> Number:
    """Return the largest weight that a rank has for this micro-batch: their sums must be in one unit."""
    weight = state.window.weight
    if state.world == 1:
        return weight
    found = gathered(torch.as_tensor(weight, dtype=torch.float64)).amax()
    return found if isinstance(weight, Tensor) else found.item()


def _positive(number: Number) -> Flag:
    return number > 0  # pyright: ignore[reportReturnType] - of a 0-d tensor a 0-d bool tensor


def power_of_two(weight: Number) -> Number:
    """Return the power of two at or above a weight; 1 for a weight of 0.

    >>> power_of_two(1000.0), power_of_two(0.0)
    (1024.0, 1.0)
    """
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, weight.double().log2().ceil().exp2(), 1.0)
    return 2.0 ** math.ceil(math.log2(weight)) if weight > 0 else 1.0


def _corrected(state: TrainState, ready: Flag) -> TrainState:
    """Return the state whose gradients are the mean over what entered; a full window needs no correction."""
    if ready is False or _is_exact(state.window):
        return state
    factor = select(ready, lambda: _factor(state.window, state.world), lambda: 1.0)
    return state if isinstance(factor, int | float) and factor == 1 else multiplied(state, factor)


def _is_exact(window: Window) -> bool:
    """Tell, where that is free, that as many micro-batches entered as losses were divided by."""
    return window.weighted is False and isinstance(window.divisor, int) and window.divisor == window.total


def _factor(window: Window, world: int) -> Number:
    """Return divisor/entered of a counted window, world/sum of weights of a weighted one.

    Under data parallelism gradients are averaged over ranks, hence the ``world``.
    """
    divisor = select(window.weighted, lambda: world, lambda: window.divisor)
    return divisor / window.total
