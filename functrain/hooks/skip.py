"""Skipping what is not finite."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from functrain._gradients import any_non_finite
from functrain._hook import Hook, Name, Names, Outcome, Stages
from functrain._select import Flag, both, either, is_finite, negate, peek, select
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.hooks.clip_statistics import device_of

SkipLimit = Annotated[int, Field(ge=0)] | None


class SkipNonFinite(Hook):
    """A NaN or an infinity never reaches the weights.

    A micro-batch whose loss is not finite is dropped, so the rest of its window still counts; with ``drop=False`` the
    window is vetoed instead. A window with a non-finite gradient is vetoed. Optimizers that the loss scaler is about to
    skip are not judged.

    Stages: DO_BACKWARD, DO_OPTIMIZER_STEP, AFTER_OPTIMIZER_STEP. Reads ``grad_norm``, which spares a pass over the
    gradients. Vetoes: DO_BACKWARD (drop), DO_OPTIMIZER_STEP.

    Attributes:
        drop: drop single micro-batches. The decision must be known before the backward, which costs one transfer from
            the device per micro-batch.
        max_consecutive: skips in a row before ``SkipLimitError``; None for no limit.

    >>> SkipNonFinite().name
    'finite'

    See also: :class:`SkipSpikes`, which judges finite values.
    """

    drop: bool = True
    max_consecutive: SkipLimit = 100
    priority: int = 40
    name: Name = "finite"
    stages: Stages = frozenset({Stage.DO_BACKWARD, Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP})
    reads: Names = frozenset({"grad_norm"})
    rank_local: bool = True

    @property
    def may_drop(self) -> bool:
        """Whether micro-batches are dropped."""
        return self.drop

    def may_differ(self, stage: Stage) -> bool:
        """Judge what each rank has computed alone; the gradients of a window have been reduced."""
        return super().may_differ(stage) and self.drop is (stage is Stage.DO_BACKWARD)

    def init(self, state: TrainState) -> Any:
        """Remember whether a loss of the open window was not finite."""
        return FrozenMap({"bad": torch.zeros((), dtype=torch.bool, device=device_of(state))})

    def reset(self, slot: Any) -> Any:
        """Forget the window."""
        return slot | {"bad": torch.zeros_like(slot["bad"])}

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Judge the loss, judge the gradients, start anew."""
        match stage:
            case Stage.DO_BACKWARD:
                return self._judge_loss(state, will_skip)
            case Stage.DO_OPTIMIZER_STEP:
                proceed = True if will_skip is True else either(will_skip, self._judge_window(state))
                return Outcome(state, proceed, state.loss)
            case _:
                return Outcome(self._renewed(state), True, state.loss)

    def _judge_loss(self, state: TrainState, will_skip: Flag) -> Outcome:
        """Drop a micro-batch, or remember it until the boundary."""
        good = is_finite(state.loss)
        if state.raw_loss is not state.loss:
            good = both(good, is_finite(state.raw_loss))
        if self.drop or good is True:
            return Outcome(state, good, state.loss)
        enters_bad = both(negate(will_skip), negate(good))
        if enters_bad is False:
            return Outcome(state, True, state.loss)
        slot = state.hooks[self.name]
        bad = slot["bad"] | _beside(enters_bad, slot["bad"])
        return Outcome(state.with_slot(self.name, slot | {"bad": bad}), True, state.loss)

    def _renewed(self, state: TrainState) -> TrainState:
        """Forget the window at its boundary; nothing to forget costs nothing."""
        slot = state.hooks[self.name]
        if peek(slot["bad"]) is False:
            return state
        return state.with_slot(self.name, select(state.window.boundary, lambda: self.reset(slot), lambda: slot))

    def _judge_window(self, state: TrainState) -> Flag:
        """Return whether losses and gradients of the window are finite."""
        return negate(either(peek(state.hooks[self.name]["bad"]), _bad_gradients(state)))


def _beside(flag: Flag, tensor: Tensor) -> Flag:
    """Return a flag on the device of a tensor that it is about to meet."""
    return flag.to(tensor.device) if isinstance(flag, Tensor) else flag


def _bad_gradients(state: TrainState) -> Flag:
    """Return whether a gradient is not finite; a finite norm of this batch answers that for free."""
    norm = state.metrics.get("grad_norm")
    if norm is None:
        return any_non_finite(state)
    return select(is_finite(norm), lambda: False, lambda: any_non_finite(state))
