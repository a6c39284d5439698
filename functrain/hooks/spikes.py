"""Skipping what is finite but far from normal."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from functrain._collectives import gathered
from functrain._gradients import total_norm
from functrain._hook import Hook, Name, Names, Outcome, Stages
from functrain._select import Flag, both, either, is_nan, negate, select
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.hooks.clip_statistics import device_of
from functrain.hooks.skip import SkipLimit
from functrain.hooks.spike_statistics import FixedLimit, MedianDeviation, MovingMean


class SkipSpikes(Hook):
    """A window with a spike in it makes no step, and what was rejected does not move the statistics.

    Every micro-batch of the window is judged, not only the last; a value that is not finite is a spike. Of the norm,
    the one before clipping is judged.

    Stages: DO_BACKWARD, DO_OPTIMIZER_STEP, AFTER_OPTIMIZER_STEP. Reads ``grad_norm``. Vetoes: DO_OPTIMIZER_STEP, with
    ``drop`` also DO_BACKWARD. Statistics change at AFTER_OPTIMIZER_STEP only, iff a step ran.

    Attributes:
        by: :class:`MovingMean`, :class:`MedianDeviation` or :class:`FixedLimit`.
        of: ``"loss"``, as the user computed it, or ``"grad_norm"``.
        drop: drop single micro-batches instead of the window; costs one transfer per micro-batch.
        max_consecutive: skips in a row before ``SkipLimitError``; None for no limit.

    >>> SkipSpikes(by=FixedLimit(limit=10.0)).name
    'spikes'

    See also: :class:`SkipNonFinite`; :class:`ClipZScore`, which scales spikes down instead.
    """

    by: MovingMean | MedianDeviation | FixedLimit = Field(default_factory=MovingMean)
    of: Literal["loss", "grad_norm"] = "loss"
    drop: bool = False
    max_consecutive: SkipLimit = 100
    priority: int = 40
    name: Name = "spikes"
    stages: Stages = frozenset({Stage.DO_BACKWARD, Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP})
    reads: Names = frozenset({"grad_norm"})
    rank_local: bool = True

    @model_validator(mode="after")
    def _droppable(self) -> Self:
        """Refuse to drop by what is known only after the backward."""
        if self.drop and self.of == "grad_norm":
            msg = 'drop=True needs of="loss": the gradient norm is known only after the backward'
            raise ValueError(msg)
        return self

    @property
    def may_drop(self) -> bool:
        """Whether micro-batches are dropped."""
        return self.drop

    def may_differ(self, stage: Stage) -> bool:
        """Judge a micro-batch by the loss of each rank; a window by the numbers of all."""
        return stage is Stage.DO_BACKWARD and super().may_differ(stage)

    def init(self, state: TrainState) -> Any:
        """Keep the statistic, and of the open window the largest value, the sum and the count."""
        zero = torch.zeros((), dtype=torch.float64, device=device_of(state))
        return FrozenMap({"statistic": self.by.init(device_of(state)), **_empty_window(zero), "value": zero})

    def reset(self, slot: Any) -> Any:
        """Forget the window."""
        return slot | _empty_window(slot["sum"])

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Judge the loss, judge the window, learn."""
        match stage:
            case Stage.DO_BACKWARD:
                return self._see_loss(state, will_skip) if self.of == "loss" else Outcome(state, True, state.loss)
            case Stage.DO_OPTIMIZER_STEP:
                state = self._pooled(state) if state.world > 1 else state
                return Outcome(state, True, state.loss) if will_skip is True else self._judge(state, will_skip)
            case _:
                return Outcome(self._learn(state, will_skip), True, state.loss)

    def _see_loss(self, state: TrainState, will_skip: Flag) -> Outcome:
        """Take a micro-batch into the window's numbers, unless it is dropped."""
        slot = state.hooks[self.name]
        value = state.raw_loss.detach().to(slot["sum"].device, torch.float64)
        fine = self._accepts(slot, value)
        enters = both(negate(will_skip), fine if self.drop else True)
        seen = {
            "worst": torch.maximum(slot["worst"], value),
            "sum": slot["sum"] + value,
            "count": slot["count"] + 1.0,
        }
        slot = select(enters, lambda: slot | seen, lambda: slot)
        return Outcome(state.with_slot(self.name, slot), fine if self.drop else True, state.loss)

    def _accepts(self, slot: Any, value: Tensor) -> Tensor:
        """Return whether a value is finite and within the limit; NaN compares False."""
        return (value <= self.by.limit(slot["statistic"])) & value.isfinite()

    def _pooled(self, state: TrainState) -> TrainState:
        """Return the state with the window's numbers over all ranks: a spike of one is a spike of all."""
        boundary = state.window.boundary  # a tensor in the pure engine, which is one process
        if self.of == "grad_norm" or isinstance(boundary, Tensor):
            return state
        if not (boundary and state.window.entered):
            return state
        slot = state.hooks[self.name]
        worst, total, count = gathered(torch.stack([slot[name] for name in ("worst", "sum", "count")])).unbind(1)
        # A NaN of one rank wins: `amax` hands it on.
        seen = {"worst": worst.amax(), "sum": total.sum(), "count": count.sum()}
        return state.with_slot(self.name, slot | seen)

    def _judge(self, state: TrainState, will_skip: Flag) -> Outcome:
        """Veto the window by its largest value, unless it is off anyway; its mean waits until the step has run."""
        slot = state.hooks[self.name]
        if self.of == "grad_norm":
            worst = value = _norm(state).to(slot["sum"].device, torch.float64)
        else:
            worst, value = slot["worst"], slot["sum"] / slot["count"].clamp(min=1.0)
        proceed = either(will_skip, self._accepts(slot, worst))
        value = select(will_skip, lambda: slot["value"], lambda: value)
        return Outcome(state.with_slot(self.name, slot | {"value": value}), proceed, state.loss)

    def _learn(self, state: TrainState, will_skip: Flag) -> TrainState:
        """Let the statistic follow an executed step; forget the window at its boundary."""
        slot = state.hooks[self.name]
        old, value = slot["statistic"], slot["value"]
        new = select(
            negate(will_skip),
            lambda: select(value.isfinite(), lambda: self.by.learned(old, value), lambda: old),
            lambda: old,
        )
        slot = slot | {"statistic": new}
        return state.with_slot(self.name, select(state.window.boundary, lambda: self.reset(slot), lambda: slot))


def _empty_window(like: Tensor) -> dict[str, Tensor]:
    """Return the numbers of a window with nothing in it, each a tensor of its own."""
    zeros = {name: torch.zeros_like(like) for name in ("sum", "count")}
    return {"worst": torch.full_like(like, -float("inf")), **zeros}


def _norm(state: TrainState) -> Tensor:
    """Return the norm before clipping: what was published in this batch, else measured now."""
    published = state.metrics.get("grad_norm")
    if published is None:
        return total_norm(state)
    return select(
        is_nan(published),
        lambda: total_norm(state).to(published.device, torch.float32),
        lambda: published,
    )
