"""Cases b11 to b13: limits that come from the weights or from the norms of the run."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from functrain import Accumulate, ClipAdaptive, ClipPercentile, ClipZScore, Shell, SkipNonFinite
from functrain.hooks.clip_adaptive import unit_clipped
from tests.scalars import Weight, applied, run, sgd_shell

INF = float("inf")
SIZES = st.floats(0.01, 100.0)


def weights_of(shell: Shell) -> Any:
    """Return the weights."""
    return shell.state.params["main"]["w"].tolist()


def test_b11_each_row_is_limited_by_its_own_weights() -> None:
    """Rows of weight norm 5 and 0 under clip .1 take at most .5 and .1 eps of their gradient rows."""
    shell = sgd_shell(Weight([[3.0, 4.0], [0.0, 0.0]]), ClipAdaptive(clip=0.1, eps=1e-3))
    run(shell, [[[6.0, 8.0], [1.0, 0.0]]])
    assert weights_of(shell) == [pytest.approx([2.7, 3.6]), pytest.approx([-0.0001, 0.0])]


@given(seed=st.integers(0, 2**31), shape=st.sampled_from([(3,), (2, 3), (2, 3, 2), (2, 1, 3, 3)]), clip=SIZES)
def test_b11_any_unit_obeys_the_rule_of_the_paper(seed: int, shape: tuple[int, ...], clip: float) -> None:
    """Vectors as a whole, matrices by row, filters by output channel: the norm is at most clip max(|w|, eps)."""
    draw = torch.Generator().manual_seed(seed)
    weight, grad = torch.randn(shape, generator=draw), 3.0 * torch.randn(shape, generator=draw)
    shell = sgd_shell(Weight(weight.tolist()), ClipAdaptive(clip=clip, eps=1e-3))
    run(shell, [grad])
    units = 1 if len(shape) == 1 else shape[0]
    rows, steps = grad.reshape(units, -1), (weight - shell.state.params["main"]["w"]).reshape(units, -1)
    limits = clip * weight.reshape(units, -1).norm(dim=1).clamp(min=1e-3)
    right = rows * (limits / rows.norm(dim=1)).clamp(max=1.0)[:, None]
    torch.testing.assert_close(steps, right, rtol=1e-4, atol=1e-5)


def zscore_shell(mean: float, std: float, **options: Any) -> Shell:
    """Return a shell whose z-score clip is past its warm-up, with the statistics given."""
    shell = sgd_shell(Weight(), ClipZScore(warmup=1, **options))
    taken = shell.snapshot()
    known = {
        "mean": torch.tensor(mean, dtype=torch.float64),
        "var": torch.tensor(std**2, dtype=torch.float64),
        "seen": torch.tensor(5),
    }
    state = taken.state.with_slot("clip_zscore", taken.state.slot("clip_zscore") | known)
    shell.restore(dataclasses.replace(taken, state=state))
    return shell


def test_b12_a_high_z_score_is_clipped_towards_the_mean() -> None:
    """Norm 2 at mean 1 and std .2 is clipped to 1.25, which then feeds mean and variance."""
    shell = zscore_shell(1.0, 0.2, z=2.5, alpha=0.97)
    run(shell, [2.0])
    slot = shell.state.slot("clip_zscore")
    assert applied(shell) == pytest.approx(1.25)
    assert float(slot["mean"]) == pytest.approx(1.0075)
    assert float(slot["var"]) == pytest.approx(0.0405641875)


def zscore_by_hand(norms: list[float], warmup: int, z: float, alpha: float) -> tuple[list[float], float, float]:
    """Return the clipped norms, mean and variance of ZClip, written down in NumPy."""
    fed: list[float] = []
    mean = var = 0.0
    for norm in norms:
        now = (norm - mean) / var**0.5 if len(fed) >= warmup and var > 0 else 0.0
        fed.append(mean + z**2 / now * var**0.5 if now > z else norm)
        if len(fed) <= warmup:
            mean, var = float(np.mean(fed)), float(np.var(fed))
        else:
            mean = alpha * mean + (1 - alpha) * fed[-1]
            var = alpha * var + (1 - alpha) * (fed[-1] - mean) ** 2
    return fed, mean, var


@given(
    norms=st.lists(SIZES, min_size=1, max_size=12),
    warmup=st.integers(1, 6),
    z=st.floats(0.5, 3.0),
    alpha=st.floats(0.1, 0.99),
    strict=st.booleans(),
)
@example(norms=[1.0, 1.0, 2.0], warmup=1, z=1.0, alpha=0.1, strict=False)  # a mean in float32 would drift
def test_b12_any_norms_follow_the_rule_of_the_paper(
    norms: list[float], warmup: int, z: float, alpha: float, strict: bool
) -> None:
    """Over warm-up and after it, applied gradients, mean and variance are those of the rule by hand."""
    shell = sgd_shell(Weight(0.0, torch.float64), ClipZScore(warmup=warmup, z=z, alpha=alpha), strict=strict)
    run(shell, norms)
    fed, mean, var = zscore_by_hand(norms, warmup, z, alpha)
    slot = shell.state.slot("clip_zscore")
    pairs = zip(norms, fed, strict=True)
    assert applied(shell) == pytest.approx(sum(n * min(1.0, (f if f < n else INF) / (n + 1e-6)) for n, f in pairs))
    assert (float(slot["mean"]), float(slot["var"])) == pytest.approx((mean, var), rel=1e-5, abs=1e-9)


def test_b13_the_percentile_counts_the_current_norm() -> None:
    """After norms 1 to 9, a norm of 100 is clipped to the tenth percentile of all ten: 1.9."""
    shell = sgd_shell(Weight(), ClipPercentile(percentile=10.0))
    run(shell, range(1, 10))
    before = applied(shell)
    run(shell, [100])
    assert applied(shell) - before == pytest.approx(1.9, rel=1e-5)


@given(
    norms=st.lists(SIZES, min_size=1, max_size=12),
    percentile=st.floats(0.0, 100.0),
    history=st.integers(1, 8),
)
def test_b13_any_percentile_is_that_of_numpy(norms: list[float], percentile: float, history: int) -> None:
    """Any percentile over a history of any length, the current norm included: numpy.percentile, linear."""
    shell = sgd_shell(Weight(0.0, torch.float64), ClipPercentile(percentile=percentile, history=history))
    right = 0.0
    for place, norm in enumerate(norms):
        run(shell, [norm])
        known = norms[max(0, place + 1 - history) : place + 1]
        right += norm * min(1.0, float(np.percentile(known, percentile)) / (norm + 1e-6))
        assert applied(shell) == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("clip", [ClipPercentile(percentile=50.0), ClipZScore(warmup=1)], ids=lambda clip: clip.name)
def test_b12_b13_rejected_norms_teach_nothing(clip: Any) -> None:
    """Neither a micro-batch that waits nor a window that is vetoed moves the statistics."""
    shell = sgd_shell(Weight(), Accumulate(every=2) + clip + SkipNonFinite(drop=False))
    run(shell, [1.0, 3.0, 2.0, 4.0])
    slot = shell.state.slot(clip.name)
    run(shell, [float("nan"), 1.0, float("inf"), 5.0, 9.0])
    new = shell.state.slot(clip.name)
    kept = [name for name in slot if name != "norm"]
    assert slot["seen"] == 2
    assert {name: str(new[name]) for name in kept} == {name: str(slot[name]) for name in kept}


def test_b11_in_both_kinds_of_numbers() -> None:
    """Ratio and eps as 0-d doubles clip bitwise as Python's numbers do, in the dtype of the gradient."""
    grad, weight = torch.tensor([[6.0, 8.0], [1.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    numbers = [torch.tensor(each, dtype=torch.float64) for each in (0.1, 1e-3)]
    found = unit_clipped(grad, weight, numbers[0], numbers[1])
    assert found.dtype is torch.float32
    assert torch.equal(found, unit_clipped(grad, weight, 0.1, 1e-3))
