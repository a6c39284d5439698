"""What is normal for a loss or a norm, and so what is a spike: three rules, each a small pure model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from functrain._configuration import Configuration
from functrain._tree import FrozenMap
from functrain.hooks.ring import filled, quantile, ring

MAD_TO_STD = 1.4826
"""Median absolute deviation times this estimates the standard deviation of a normal distribution."""


class Statistic(Configuration):
    """A rule: a value above :meth:`limit` is a spike; :meth:`learned` follows what was accepted."""

    def init(self, device: torch.device) -> Any:
        """Return the rule's part of the slot."""
        raise NotImplementedError

    def limit(self, slot: Any) -> Tensor:
        """Return the largest value that is no spike, a 0-d float64 tensor; infinity while unknown."""
        raise NotImplementedError

    def learned(self, slot: Any, value: Tensor) -> Any:
        """Return the slot after an accepted, finite value."""
        raise NotImplementedError


def _number(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device=device)


def _or_infinity(known: Tensor, bound: Tensor) -> Tensor:
    """Return a limit where it is known; an infinite factor is no limit, also of a spread of zero."""
    return torch.where(known & ~bound.isnan(), bound, float("inf"))


class FixedLimit(Statistic):
    """Every value above a fixed limit is a spike.

    >>> float(FixedLimit(limit=10.0).limit(FixedLimit(limit=10.0).init(torch.device("cpu"))))
    10.0
    """

    # Every number but NaN is at least minus infinity: a NaN would make a spike of everything.
    limit_value: Annotated[float, Field(ge=-math.inf)] = Field(alias="limit")

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Show the limit by the name under which it is given."""
        return [("limit", self.limit_value)]

    def init(self, device: torch.device) -> Any:
        """Lift the limit."""
        return FrozenMap({"limit": _number(self.limit_value, device)})

    def limit(self, slot: Any) -> Tensor:
        """Return the limit."""
        return slot["limit"]

    def learned(self, slot: Any, value: Tensor) -> Any:  # noqa: ARG002 - learns nothing
        """Return the slot as it is."""
        return slot


class MovingMean(Statistic):
    """A value above ``ratio`` times a moving mean is a spike: mean <- (1 - alpha) * mean + alpha * value.

    Attributes:
        ratio: above 1. For a negative mean m the limit is m + (ratio - 1) * |m|.
        alpha: weight of the newest value, in (0, 1].
        start: mean to start from; None takes the first accepted value.
        warmup: accepted values before anything is judged.

    >>> MovingMean(ratio=1.3, alpha=0.2, start=2.0).start
    2.0
    """

    ratio: Annotated[float, Field(gt=1)] = 2.0
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.1
    start: Annotated[float, Field(allow_inf_nan=False)] | None = None
    warmup: Annotated[int, Field(ge=0)] = 10

    def init(self, device: torch.device) -> Any:
        """Keep the mean, NaN while there is none, and how many values it has seen."""
        start = float("nan") if self.start is None else self.start
        seen = torch.zeros((), dtype=torch.int64, device=device)
        numbers = {"ratio": self.ratio, "alpha": self.alpha, "mean": start}
        return FrozenMap({**{name: _number(value, device) for name, value in numbers.items()}, "seen": seen})

    def limit(self, slot: Any) -> Tensor:
        """Return ratio times the mean; infinity during warm-up and while there is no mean."""
        known = (slot["seen"] >= self.warmup) & ~slot["mean"].isnan()
        bound = slot["mean"] + (slot["ratio"] - 1.0) * slot["mean"].abs()
        return _or_infinity(known, bound)

    def learned(self, slot: Any, value: Tensor) -> Any:
        """Move the mean."""
        moved = (1.0 - slot["alpha"]) * slot["mean"] + slot["alpha"] * value
        return slot | {"mean": torch.where(slot["mean"].isnan(), value, moved), "seen": slot["seen"] + 1}


class MedianDeviation(Statistic):
    """A value above the median by ``deviations`` robust standard deviations is a spike; old spikes do not move it.

        limit = median + deviations * max(1.4826 * MAD, floor * |median|)

    Attributes:
        deviations: above 0.
        history: how many accepted values are kept.
        warmup: accepted values before anything is judged.
        floor: smallest deviation, relative to the median, for values that hardly vary.

    >>> MedianDeviation().deviations
    6.0
    """

    deviations: Annotated[float, Field(gt=0)] = 6.0
    history: Annotated[int, Field(ge=1)] = 128
    warmup: Annotated[int, Field(ge=1)] = 16
    floor: Annotated[float, Field(ge=0)] = 0.01

    def init(self, device: torch.device) -> Any:
        """Keep a ring of accepted values."""
        seen = torch.zeros((), dtype=torch.int64, device=device)
        values = ring(self.history, device).double()
        return FrozenMap({"deviations": _number(self.deviations, device), "values": values, "seen": seen})

    def limit(self, slot: Any) -> Tensor:
        """Return the limit; infinity during warm-up."""
        median = quantile(slot["values"], 0.5)
        mad = quantile((slot["values"] - median).abs(), 0.5)
        bound = median + slot["deviations"] * torch.maximum(MAD_TO_STD * mad, self.floor * median.abs())
        return _or_infinity(slot["seen"] >= self.warmup, bound)

    def learned(self, slot: Any, value: Tensor) -> Any:
        """Put the value where the oldest one was."""
        return slot | {"values": filled(slot["values"], slot["seen"], value), "seen": slot["seen"] + 1}
