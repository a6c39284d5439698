"""Clipping to a limit that is learned from the norms of the run itself."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from functrain._gradients import limited, measured, total_norm
from functrain._hook import Hook, Name, Names, Outcome, Stages, Writes
from functrain._select import Flag, beside, negate, select
from functrain._stage import Stage
from functrain._state import TrainState, nothing
from functrain._tree import FrozenMap
from functrain.hooks.ring import filled, quantile, ring


class LearnedLimit(Hook):
    """What clips by a learned limit share: measure, limit, remember, and learn once the step has run.

    Statistics change at AFTER_OPTIMIZER_STEP only, iff a step ran, never with a non-finite value.
    """

    priority: int = 30
    stages: Stages = frozenset({Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP})
    writes: Writes = frozenset({"grads"})
    publishes: Names = frozenset({"grad_norm", "grad_limit"})

    @property
    def keeps_finite(self) -> bool:
        """Clipping only makes gradients smaller."""
        return True

    def limit(self, slot: Any, norm: Tensor) -> Tensor:
        """Return the limit for a gradient of this norm, a 0-d tensor; infinity while unknown."""
        raise NotImplementedError

    def learned(self, slot: Any, norm: Tensor) -> Any:
        """Return the slot after a step whose gradient had this norm before clipping."""
        raise NotImplementedError

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Clip before the step, learn after it."""
        act = self._learn if stage is Stage.AFTER_OPTIMIZER_STEP else self._clip
        return Outcome(state if will_skip is True else act(state, will_skip), True, state.loss)

    def _clip(self, state: TrainState, will_skip: Flag) -> TrainState:
        """Measure, publish, scale; the norm waits in the slot until the step has run."""
        slot, norm = state.hooks[self.name], total_norm(state)
        kept = norm.detach().to(slot["norm"].device, slot["norm"].dtype)
        limit = self.limit(slot, kept)
        state = limited(state, norm, limit, will_skip)
        kept = select(will_skip, lambda: slot["norm"], lambda: kept)
        return measured(state.with_slot(self.name, slot | {"norm": kept}), norm, limit, will_skip)

    def _learn(self, state: TrainState, will_skip: Flag) -> TrainState:
        """Take the norm of an executed step into the statistics."""
        slot = state.hooks[self.name]
        new = select(negate(will_skip), lambda: _if_finite(slot, self.learned(slot, slot["norm"])), lambda: slot)
        return state.with_slot(self.name, new)


def _if_finite(old: Any, new: Any) -> Any:
    """Return the new slot where the norm that it learned from is finite."""
    return select(torch.isfinite(old["norm"]), lambda: new, lambda: old)


def device_of(state: TrainState) -> torch.device:
    """Return where statistics live: with the first parameter."""
    first = next((leaf for held in state.params.values() for leaf in held.values()), None)
    return torch.device("cpu") if first is None else first.device


class ClipPercentile(LearnedLimit):
    """Clip to a percentile of the norms seen so far, the current one included (AutoClip).

    Stages: DO_OPTIMIZER_STEP, AFTER_OPTIMIZER_STEP. Writes ``grads``. Publishes ``grad_norm`` and
    ``grad_limit``. Never vetoes.
    Source: Seetharaman et al. 2020, https://arxiv.org/abs/2007.14469; linear interpolation between ranks.

    Attributes:
        percentile: in [0, 100]. In the slot as ``percentile``.
        history: how many norms are kept.

    >>> ClipPercentile(percentile=10.0).name
    'clip_percentile'

    See also: :class:`ClipZScore`, which adapts faster.
    """

    percentile: Annotated[float, Field(ge=0, le=100)] = 10.0
    history: Annotated[int, Field(ge=1)] = 1000
    name: Name = "clip_percentile"

    def init(self, state: TrainState) -> Any:
        """Keep a ring of norms."""
        where = device_of(state)
        seen, norm = torch.zeros((), dtype=torch.int64, device=where), nothing().to(where)
        return FrozenMap(
            {"percentile": self.percentile, "norms": ring(self.history, where), "seen": seen, "norm": norm}
        )

    def limit(self, slot: Any, norm: Tensor) -> Tensor:
        """Return the percentile over history and current norm; infinity where the norm is not finite."""
        known = self.learned(slot, norm)["norms"]
        rank = beside(slot["percentile"] / 100.0, known)
        return quantile(known, rank)

    def learned(self, slot: Any, norm: Tensor) -> Any:
        """Put the norm where the oldest one was."""
        return slot | {"norms": filled(slot["norms"], slot["seen"], norm), "seen": slot["seen"] + 1}


class ClipZScore(LearnedLimit):
    """Clip norms that lie more than ``z`` standard deviations above their moving mean (ZClip).

        z_now = (norm - mean) / std;  limit = mean + z^2 / z_now * std   where z_now > z

    Mean and variance follow the *clipped* norm, the variance around the new mean. Nothing is clipped during warm-up.

    Stages: DO_OPTIMIZER_STEP, AFTER_OPTIMIZER_STEP. Writes ``grads``. Publishes ``grad_norm`` and
    ``grad_limit``. Never vetoes.
    Source: Kumar et al. 2025, https://arxiv.org/abs/2504.02507.

    Attributes:
        z: threshold in standard deviations. In the slot as ``z``.
        alpha: what a moving average keeps per step. In the slot as ``alpha``.
        warmup: steps whose norms only feed the first mean and variance.

    >>> ClipZScore().z
    2.5

    See also: :class:`ClipPercentile`, which needs no assumption about the distribution.
    """

    z: Annotated[float, Field(gt=0)] = 2.5
    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.97
    warmup: Annotated[int, Field(ge=1)] = 25
    name: Name = "clip_zscore"

    def init(self, state: TrainState) -> Any:
        """Keep mean, variance and the number of norms seen."""
        zero = torch.zeros((), dtype=torch.float64, device=device_of(state))
        statistics = {name: zero.clone() for name in ("mean", "var", "norm")}
        return FrozenMap({"z": self.z, "alpha": self.alpha, **statistics, "seen": zero.to(torch.int64)})

    def limit(self, slot: Any, norm: Tensor) -> Tensor:
        """Return the limit; infinity during warm-up and for norms that are not too large."""
        std = slot["var"].sqrt()
        now = (norm - slot["mean"]) / torch.where(std > 0, std, 1.0)
        high = (now > slot["z"]) & (std > 0) & (slot["seen"] >= self.warmup)
        return torch.where(high, slot["mean"] + slot["z"] ** 2 / torch.where(high, now, 1.0) * std, float("inf"))

    def learned(self, slot: Any, norm: Tensor) -> Any:
        """Move mean and variance; in warm-up they are those of all norms so far."""
        seen = slot["seen"] + 1
        keep = select(slot["seen"] >= self.warmup, lambda: slot["alpha"], lambda: 1.0 - 1.0 / seen.double())
        fed = torch.minimum(norm, self.limit(slot, norm))
        mean = keep * slot["mean"] + (1.0 - keep) * fed
        # During warm-up the deviations from the old and the new mean make the exact variance (Welford).
        around = select(slot["seen"] >= self.warmup, lambda: mean, lambda: slot["mean"])
        var = keep * slot["var"] + (1.0 - keep) * (fed - mean) * (fed - around)
        return slot | {"mean": mean, "var": var, "seen": seen}
