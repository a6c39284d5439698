"""The statistics of spikes beside the same in plain Python: which losses pass, and what is learned of them."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import MedianDeviation, MovingMean, SkipSpikes
from tests.scalars import Weight, sgd_shell

FLOOR = 1 / 64
"""Exact in binary, as the losses are: both sides round alike, also on the limit."""
LOSSES = st.lists(st.integers(-8, 64).map(lambda each: each / 8) | st.just(math.nan), max_size=24)


def passed(by: Any, losses: list[float]) -> list[bool]:
    """Return which losses led to a step."""
    model = Weight()
    shell, found = sgd_shell(model, SkipSpikes(by=by)), []
    for loss in losses:
        with shell.batch():
            shell.update(model.w * 0.0 + torch.tensor(loss, dtype=torch.float64))
        found.append(any(shell.state.stepped.values()))
    return found


@given(losses=LOSSES, history=st.integers(1, 5), warmup=st.integers(1, 5), deviations=st.sampled_from([1.0, 4.0]))
def test_median_and_deviation(losses: list[float], history: int, warmup: int, deviations: float) -> None:
    """A loss passes up to the median of the latest accepted ones plus so many deviations, and only then is learned."""
    accepted: list[float] = []
    right = []
    for loss in losses:
        latest = accepted[-history:]
        limit = math.inf
        if len(accepted) >= warmup:
            middle = median(latest)
            spread = 1.4826 * median(abs(each - middle) for each in latest)
            limit = middle + deviations * max(spread, FLOOR * abs(middle))
        right.append(loss <= limit)  # NaN compares False
        accepted += [loss] if right[-1] else []
    by = MedianDeviation(deviations=deviations, history=history, warmup=warmup, floor=FLOOR)
    assert passed(by, losses) == right


@given(losses=LOSSES, warmup=st.integers(0, 5), alpha=st.sampled_from([0.25, 0.5]))
def test_moving_mean(losses: list[float], warmup: int, alpha: float) -> None:
    """A loss passes up to twice the moving mean of the accepted ones, after a warm-up of accepted ones."""
    mean, accepted, right = math.nan, 0, []
    for loss in losses:
        known = accepted >= warmup and not math.isnan(mean)
        right.append(loss <= mean + abs(mean) if known else not math.isnan(loss))
        if right[-1]:
            mean = loss if math.isnan(mean) else (1 - alpha) * mean + alpha * loss
            accepted += 1
    assert passed(MovingMean(ratio=2.0, alpha=alpha, warmup=warmup), losses) == right


@pytest.mark.parametrize("by", [MovingMean(), MedianDeviation()])
def test_counts_are_whole_and_numbers_double(by: Any) -> None:
    """What a statistic keeps is exact for as many values as a run has."""
    slot = by.init(torch.device("cpu"))
    for value in (1.0, 2.0):
        slot = by.learned(slot, torch.tensor(value, dtype=torch.float64))
    kinds = {name: each.dtype for name, each in slot.items()}
    assert (kinds.pop("seen"), set(kinds.values())) == (torch.int64, {torch.float64})
