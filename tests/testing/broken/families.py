"""Hooks of the library's families that break what their family promises."""

from __future__ import annotations

from typing import Any

import torch

from functrain import EMA, Accumulate, ClipNorm, ClipValue, FixedLimit, Outcome, SkipSpikes, Stage, TrainState, select
from functrain._select import negate
from tests.testing.broken.making import Broken, mapped


def multiplied(outcome: Outcome, factor: float, will_skip: Any) -> Outcome:
    """Return an outcome with its gradients times a factor, unless the step is off."""
    state = outcome.state.replace(donated=False)
    changed = select(will_skip, lambda: state.grads, lambda: mapped(state, "grads", lambda grad: grad * factor).grads)
    return outcome._replace(state=outcome.state.replace(grads=changed))


class Loose(ClipNorm):
    """Clips to twice the limit."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Clip, and double."""
        return multiplied(super().update(state, stage, will_skip), 2.0, will_skip)


class Uphill(ClipNorm):
    """Clips, and turns around."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Clip, and negate."""
        return multiplied(super().update(state, stage, will_skip), -1.0, will_skip)


class Shrinking(ClipValue):
    """Clips, and halves."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Clip, and halve."""
        return multiplied(super().update(state, stage, will_skip), 0.5, will_skip)


class NeverInPlace(EMA):
    """Makes a new shadow for every update; itself not broken."""

    def _moved_(self, state: TrainState, slot: Any) -> Outcome:
        return Outcome(state.with_slot(self.name, self._averaged(slot, state)), True, state.loss)


class Overshooting(NeverInPlace):
    """Goes twice as far as the weights."""

    def _averaged(self, slot: Any, state: TrainState) -> Any:
        found = super()._averaged(slot, state)
        away = {name: shadow * 2 + 1 for name, shadow in found["shadow"].items()}
        return found | {"shadow": away}


class FromZero(NeverInPlace):
    """Starts at zero, as Adam's moments do, and corrects nothing."""

    def _averaged(self, slot: Any, state: TrainState) -> Any:
        zeros = {name: torch.zeros_like(shadow) for name, shadow in slot["shadow"].items()}
        first = select(slot["n_averaged"] == 0, lambda: slot | {"shadow": zeros}, lambda: slot)
        return super()._averaged(first | {"n_averaged": slot["n_averaged"] + 1}, state)


class Inverted(SkipSpikes):
    """Lets spikes pass, and stops what is normal."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Say the contrary."""
        outcome = super().update(state, stage, will_skip)
        return outcome._replace(proceed=negate(outcome.proceed)) if stage is Stage.DO_OPTIMIZER_STEP else outcome


class Summing(Accumulate):
    """Adds up gradients instead of taking their mean."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Multiply by how many there are."""
        outcome = super().update(state, stage, will_skip)
        return multiplied(outcome, 1.0 * self.every, will_skip) if stage is Stage.DO_OPTIMIZER_STEP else outcome


CASES = {
    "twice the limit": Broken("clip: bounded", lambda: Loose(max_norm=1.0)),
    "uphill": Broken("clip: direction", lambda: Uphill(max_norm=1.0)),
    "ever smaller": Broken("clip: idempotent", lambda: Shrinking(clip_value=4.0)),
    "too far": Broken("ema: between", Overshooting),
    "not standing still": Broken("ema: fixed point", Overshooting),
    "from zero": Broken("ema: unbiased start", FromZero),
    "inverted": Broken("skip: monotone", lambda: Inverted(by=FixedLimit(limit=1.0))),
    "a sum": Broken("accumulate: k in one", lambda: Summing(every=2)),
}
