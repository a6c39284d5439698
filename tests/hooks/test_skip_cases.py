"""The rows D of the cases: what is vetoed, what is dropped, and what spikes are measured against."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import functrain
from functrain import (
    Accumulate,
    ClipNorm,
    FixedLimit,
    MedianDeviation,
    MovingMean,
    Shell,
    SkipLimitError,
    SkipNonFinite,
    SkipSpikes,
    Stage,
)
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import STEP, half, looking, vetoing

INF, NAN = float("inf"), float("nan")


def see(shell: Shell, *losses: float, slope: float = 1.0) -> None:
    """Run micro-batches with the losses given, whatever the weight, and one gradient."""
    model = shell._driver.applier.models.modules["main"]
    for value in losses:
        with shell.batch():
            loss = model(slope)
            shell.update(loss - loss.detach() + value)


def ceiling(limit: float, **options: Any) -> SkipSpikes:
    """Return a spike hook with a fixed limit."""
    return SkipSpikes(by=FixedLimit(limit=limit), **options)


LIMITED = [
    lambda limit: SkipNonFinite(max_consecutive=limit),
    lambda limit: SkipNonFinite(max_consecutive=limit, drop=False),
    lambda limit: ceiling(10.0, max_consecutive=limit),
    lambda limit: ceiling(10.0, max_consecutive=limit, drop=True),
    lambda limit: ceiling(10.0, max_consecutive=limit, of="grad_norm"),
    lambda limit: half(max_consecutive=limit),
    lambda limit: functrain.every(1, SkipNonFinite(max_consecutive=limit, drop=False)),
]


@pytest.mark.parametrize("made", LIMITED)
def test_d01_skips_are_counted_in_a_row(made: Any) -> None:
    """Limit 2: skip, skip, step, skip is no error; three in a row raise, and nothing was let through."""
    shell = sgd_shell(Weight(), made(2))
    run(shell, [NAN, NAN, 1.0, NAN])
    assert (applied(shell), shell.state.clock.consecutive_skips) == (1.0, 1)
    run(shell, [NAN])
    with pytest.raises(SkipLimitError, match=r"3 optimizer steps in a row were skipped since batch 3.*=2"):
        step(shell, NAN)
    assert applied(shell) == 1.0


@given(bad=st.lists(st.booleans(), max_size=12), limit=st.integers(0, 3), every=st.integers(1, 2))
def test_d01_the_limit_is_that_of_any_run(bad: list[bool], limit: int, every: int) -> None:
    """Raised at each boundary past the limit and at no other; weights stay finite, training goes on."""
    shell = sgd_shell(Weight(), [Accumulate(every=every), SkipNonFinite(max_consecutive=limit)])
    row = steps = 0
    for each in bad:
        row, steps = (row + 1, steps) if each else (0, steps + 1)
        run(shell, [NAN] * (every - 1) if each else [1.0] * (every - 1))
        if row <= limit:
            step(shell, NAN if each else 1.0)
            continue
        with pytest.raises(SkipLimitError, match="'finite'"):
            step(shell, NAN)
    assert (applied(shell), shell.state.clock.step) == (float(steps), steps)


def test_d01_a_flush_counts_too() -> None:
    """Epochs whose only window is dropped as a whole reach the limit, though flush() closes them."""
    shell = sgd_shell(Weight(), [Accumulate(every=4), SkipNonFinite(max_consecutive=2)])
    for _ in range(2):
        run(shell, [NAN] * 3)
        shell.flush()
    run(shell, [NAN] * 3)
    with pytest.raises(SkipLimitError, match="'finite'"):
        shell.flush()


def test_d01_no_limit_is_none() -> None:
    """None never raises, and never lets a NaN through either."""
    shell = sgd_shell(Weight(), SkipNonFinite(max_consecutive=None))
    run(shell, [NAN] * 200)
    assert (applied(shell), shell.state.clock.skipped) == (0.0, 200)


def test_d02_a_window_is_judged_on_every_micro_batch() -> None:
    """Losses 1000 and 1 under a threshold of 10: the window is vetoed; so is 1 and 1000."""
    shell = sgd_shell(Weight(), Accumulate(every=2) + ceiling(10.0))
    see(shell, 1000.0, 1.0)
    see(shell, 1.0, 1000.0)
    assert (applied(shell), shell.state.clock.skipped) == (0.0, 2)
    see(shell, 1.0, 1.0)
    assert (applied(shell), shell.state.clock.skipped) == (1.0, 2)


@given(losses=st.lists(st.sampled_from([1.0, 9.0, 10.5, 1000.0, INF, NAN]), min_size=1, max_size=5))
def test_d02_any_spike_spoils_its_window_or_is_left_out(losses: list[float]) -> None:
    """Anywhere in a window of any length; with `drop` only the micro-batch is lost, not the window."""
    fine = [value for value in losses if value <= 10.0]
    for drop, steps in ((False, len(fine) == len(losses)), (True, bool(fine))):
        shell = sgd_shell(Weight(), Accumulate(every=len(losses)) + ceiling(10.0, drop=drop))
        see(shell, *losses)
        assert (applied(shell), shell.state.clock.step) == (pytest.approx(float(steps)), int(steps))
        see(shell, *[1.0] * len(losses))
        assert shell.state.clock.step == int(steps) + 1


@pytest.mark.parametrize("clip", [ClipNorm(max_norm=1.0), functrain.every(1, ClipNorm(max_norm=1.0))])
def test_d03_spikes_are_seen_before_clipping(clip: Any) -> None:
    """True norms 1, 2, 1000 with max_norm 1: the spike hook sees 1, 2, 1000."""
    seen: list[float] = []
    look = looking(STEP, lambda state: seen.append(float(state.hooks["spikes"]["value"])))
    shell = sgd_shell(Weight(), fold_of(clip, ceiling(10.0, of="grad_norm"), look))
    run(shell, [1.0, 2.0, 1000.0])
    assert seen == [1.0, 2.0, 1000.0]
    assert (applied(shell), shell.state.clock.skipped) == (pytest.approx(2.0, abs=1e-5), 1)


def fold_of(*hooks: Any) -> Any:
    """Return the pipeline of the hooks."""
    return functrain.fold(*hooks)


def mean_of(shell: Shell) -> float:
    """Return the moving mean of the spike hook."""
    return float(shell.state.hooks["spikes"]["statistic"]["mean"])


def test_d04_a_spike_does_not_move_the_mean() -> None:
    """Ratio 1.3, alpha .2, start 2.0, losses 2.5, 3.0, 2.2: step, skip, step; means 2.1, 2.1, 2.12."""
    shell = sgd_shell(Weight(), SkipSpikes(by=MovingMean(ratio=1.3, alpha=0.2, start=2.0, warmup=0)))
    found = []
    for loss in (2.5, 3.0, 2.2):
        see(shell, loss)
        found.append((shell.state.clock.step, mean_of(shell)))
    assert found == [(1, pytest.approx(2.1)), (1, pytest.approx(2.1)), (2, pytest.approx(2.12))]


@given(
    losses=st.lists(st.floats(-4.0, 8.0, width=32) | st.sampled_from([NAN, INF, -INF]), max_size=12),
    vetoed=st.frozensets(st.integers(0, 11)),
    warmup=st.integers(0, 3),
)
def test_d04_only_executed_steps_teach(losses: list[float], vetoed: frozenset[int], warmup: int) -> None:
    """Any losses and later vetoes: the mean follows what was accepted and executed, in double."""
    shell = sgd_shell(
        Weight(), SkipSpikes(by=MovingMean(ratio=1.5, alpha=0.2, start=2.0, warmup=warmup)) + vetoing(vetoed)
    )
    mean, seen = 2.0, 0
    for batch, loss in enumerate(losses):
        see(shell, loss)
        fine = math.isfinite(loss) and (seen < warmup or loss <= mean + 0.5 * abs(mean))
        if fine and batch not in vetoed:
            mean, seen = 0.8 * mean + 0.2 * loss, seen + 1
        assert (mean_of(shell), shell.state.clock.step) == (pytest.approx(mean, rel=1e-12), seen)


@pytest.mark.parametrize("spikes", [ceiling(10.0), ceiling(10.0, of="grad_norm")])
def test_d07_after_a_veto_the_next_window_starts_from_zero(spikes: SkipSpikes) -> None:
    """A vetoed window of K=2 leaves no gradient behind: the next applies its own mean."""
    shell = sgd_shell(Weight(), [Accumulate(every=2), spikes])
    see(shell, 1000.0, 1000.0, slope=1000.0)
    assert (dict(shell.state.grads["main"]), shell.state.window.entered) == ({}, 0)
    see(shell, 1.0, 1.0, slope=3.0)
    assert applied(shell) == 3.0


@pytest.mark.parametrize("stage", [Stage.BEFORE_BATCH, STEP, Stage.AFTER_OPTIMIZER_STEP])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_d08_every_counts_steps_on_the_edge(stage: Stage, k: int) -> None:
    """An observer of every 4 steps under K accumulation looks once per 4 steps, skips not counted."""
    seen: list[int] = []
    look = functrain.every(4, looking(stage, lambda state: seen.append(state.clock.batch)))
    shell = sgd_shell(Weight(), Accumulate(every=k) + look)
    run(shell, [1.0] * 8 * k)
    assert seen == [4 * k - 1, 8 * k - 1]


@given(vetoed=st.frozensets(st.integers(0, 15)), n=st.integers(1, 4))
def test_d08_skips_do_not_count(vetoed: frozenset[int], n: int) -> None:
    """Whichever steps are vetoed, it looks exactly when the count of executed steps becomes a multiple."""
    seen: list[int] = []
    look = functrain.every(n, looking(Stage.AFTER_OPTIMIZER_STEP, lambda state: seen.append(state.clock.step + 1)))
    shell = sgd_shell(Weight(), vetoing(vetoed) + look)
    run(shell, [1.0] * 16)
    assert seen == list(range(n, 17 - len(vetoed), n))


def normalized() -> nn.Module:
    """Return a model with running statistics."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers."""
    return {name: held.clone() for name, held in model.named_buffers()}


@pytest.mark.parametrize("poison", [NAN, INF])
@pytest.mark.parametrize("hooks", [SkipNonFinite(), ceiling(1e6, drop=True), vetoing({1}, stage=Stage.DO_BACKWARD)])
@pytest.mark.parametrize("left", [True, False])
def test_d09_a_dropped_micro_batch_leaves_no_statistics(poison: float, hooks: Any, left: bool) -> None:
    """Running statistics are finite and as before; `num_batches_tracked` too; also where update() is never called."""
    torch.manual_seed(0)
    shell = sgd_shell(model := normalized(), Accumulate(every=3) + hooks, lr=0.1)
    pushed(shell, model, torch.randn(4, 2))
    before = statistics(model)
    pushed(shell, model, torch.full((4, 2), poison), update=not left)
    after = statistics(model)
    assert all(torch.equal(before[name], after[name]) and after[name].isfinite().all() for name in before)
    pushed(shell, model, torch.randn(4, 2))
    assert (model[1].num_batches_tracked.item(), shell.state.clock.step) == (2, 1)


def pushed(shell: Shell, model: nn.Module, x: Tensor, *, update: bool = True) -> None:
    """Run one forward, and one update unless it is left out."""
    with shell.batch():
        loss = model(x).square().mean()
        if update:
            shell.update(loss)


@pytest.mark.parametrize("by", [MovingMean(ratio=math.inf, warmup=0, start=0.0), MedianDeviation(deviations=math.inf)])
def test_an_infinite_factor_is_no_limit(by: Any) -> None:
    """Where nothing has varied so far, infinitely many times nothing still lets every finite value pass."""
    slot = by.init(torch.device("cpu"))
    for _ in range(40):
        slot = by.learned(slot, torch.tensor(0.0, dtype=torch.float64))
    assert float(by.limit(slot)) == math.inf
