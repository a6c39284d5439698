"""Cases a01 to a16: what a window of micro-batches applies, and when."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functrain import (
    Accumulate,
    ClipNorm,
    MixedPrecision,
    Shell,
    SkipNonFinite,
    Stage,
    TrainState,
    fit,
    observe,
)
from tests.scalars import Weight, applied, run, sgd_shell, step

NAN = float("nan")
LENGTHS = st.integers(1, 6)
SLOPES = st.lists(st.integers(-8, 8), min_size=1, max_size=12)


def window_means(slopes: list[int], every: int) -> list[Fraction]:
    """Return the mean of each window, the last of which may be shorter."""
    windows = [slopes[start : start + every] for start in range(0, len(slopes), every)]
    return [Fraction(sum(each), len(each)) for each in windows]


def train_epoch(shell: Shell, slopes: list[Any], ending: str = "flush") -> None:
    """Run one epoch of micro-batches and end it in one of the ways there are."""
    if ending == "fit":
        fit(shell, slopes, lambda model, slope: model(slope), epochs=1, progress=False)
        return
    for place, slope in enumerate(slopes):
        step(shell, slope, last=ending == "last" and place == len(slopes) - 1)
    shell.flush()


@pytest.mark.parametrize(
    "others",
    [[], [ClipNorm(max_norm=float("inf"))], [SkipNonFinite()], [MixedPrecision(precision="fp16")]],
    ids=["alone", "clip", "finite", "fp16"],
)
def test_a01_a_window_is_divided_once(others: list[Any]) -> None:
    """Gradients 1, 2, 3, 4 in one window apply their mean, whoever else is in the pipeline."""
    shell = sgd_shell(Weight(), [Accumulate(every=4), *others])
    run(shell, [1, 2, 3, 4])
    assert applied(shell) == 2.5
    assert shell.state.clock.step == 1


@given(slopes=SLOPES)
def test_a01_any_window_applies_its_mean(slopes: list[int]) -> None:
    """A window of any length applies the mean of its gradients in one step, and nothing before it is full."""
    shell = sgd_shell(Weight(), Accumulate(every=len(slopes)))
    run(shell, slopes[:-1])
    assert applied(shell) == 0.0
    run(shell, slopes[-1:])
    assert applied(shell) == pytest.approx(sum(slopes) / len(slopes), abs=1e-5)
    assert shell.state.clock.step == 1


def weighted_shell(count: int, source: str) -> Shell:
    """Return a shell that takes weights from the call or from the batch."""
    weight = (lambda batch: batch["weight"]) if source == "batch" else None
    return sgd_shell(Weight(), Accumulate(every=count, weight=weight))


def run_weighted(shell: Shell, slopes: list[float], weights: list[float], source: str) -> None:
    """Run micro-batches with weights from one source."""
    model = shell._driver.applier.models.modules["main"]
    for slope, weight in zip(slopes, weights, strict=True):
        with shell.batch({"weight": weight}):
            shell.update(model(slope), weight if source == "update" else None)


@pytest.mark.parametrize("source", ["update", "batch"])
def test_a02_a_weighted_window_counts_tokens(source: str) -> None:
    """Means 10 and 0 over 1 and 9 tokens apply the mean over all 10 tokens."""
    shell = weighted_shell(2, source)
    run_weighted(shell, [10, 0], [1, 9], source)
    assert applied(shell) == 1.0


@given(
    pairs=st.lists(st.tuples(st.integers(-8, 8), st.integers(1, 4000)), min_size=1, max_size=6),
    source=st.sampled_from(["update", "batch"]),
    fp16=st.booleans(),
)
def test_a02_any_weights_apply_the_weighted_mean(pairs: list[Any], source: str, fp16: bool) -> None:
    """Any weights, from either source and also under a loss scale, apply sum(w g) / sum(w)."""
    slopes, weights = [slope for slope, _ in pairs], [weight for _, weight in pairs]
    weight = (lambda batch: batch["weight"]) if source == "batch" else None
    hooks = [Accumulate(every=len(pairs), weight=weight), *([MixedPrecision(precision="fp16")] if fp16 else [])]
    shell = sgd_shell(Weight(), hooks)
    run_weighted(shell, slopes, weights, source)
    right = sum(slope * weight for slope, weight in pairs) / sum(weights)
    assert applied(shell) == pytest.approx(right, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("ending", ["flush", "last", "fit"])
def test_a04_a_partial_window_is_a_mean_of_what_it_holds(ending: str) -> None:
    """Five gradients of 1 in windows of two make three steps of 1, the last one from a window of one."""
    seen: list[float] = []
    look = observe("look", lambda state, _: seen.append(-float(state.params["main"]["w"])))
    shell = sgd_shell(Weight(), Accumulate(every=2) + look)
    train_epoch(shell, [1] * 5, ending)
    assert sorted(set(seen)) == [0.0, 1.0, 2.0, 3.0]
    assert applied(shell) == 3.0
    assert shell.state.clock.step == 3


def test_a05_the_tail_of_an_epoch_is_a_window() -> None:
    """Seven micro-batches in windows of four make a window of four and one of three."""
    shell = sgd_shell(Weight(), Accumulate(every=4))
    run(shell, [1, 2, 3, 4, 5, 6, 10])
    assert (applied(shell), shell.state.clock.step) == (2.5, 1)
    shell.flush()
    assert (applied(shell), shell.state.clock.step) == (9.5, 2)


def test_a06_an_epoch_shorter_than_a_window_steps_once() -> None:
    """Three micro-batches in windows of four make one step, at the flush."""
    shell = sgd_shell(Weight(), Accumulate(every=4))
    run(shell, [1, 2, 6])
    assert (applied(shell), shell.state.clock.step) == (0.0, 0)
    shell.flush()
    assert (applied(shell), shell.state.clock.step) == (3.0, 1)


@given(epochs=st.lists(SLOPES, min_size=1, max_size=3), every=LENGTHS, ending=st.sampled_from(["flush", "last"]))
def test_a04_to_a07_any_epochs_apply_the_means_of_their_windows(
    epochs: list[list[int]], every: int, ending: str
) -> None:
    """Any number of micro-batches in windows of any length: each window, also the last, applies its own mean."""
    shell = sgd_shell(Weight(), Accumulate(every=every))
    right, steps = Fraction(0), 0
    for slopes in epochs:
        train_epoch(shell, list(slopes), ending)
        means = window_means(slopes, every)
        right, steps = right + sum(means), steps + len(means)
        assert applied(shell) == pytest.approx(float(right), abs=1e-4)
        assert shell.state.clock.step == steps


@pytest.mark.parametrize("ending", ["flush", "last", "fit"])
def test_a07_a_window_never_crosses_an_epoch(ending: str) -> None:
    """The 100 at the end of an epoch of five is applied in that epoch."""
    shell = sgd_shell(Weight(), Accumulate(every=2))
    for total in (102.0, 204.0):
        train_epoch(shell, [1, 1, 1, 1, 100], ending)
        assert applied(shell) == total


@pytest.mark.parametrize(("every", "steps"), [(1, 8), (3, 3), (4, 2), (16, 1)])
def test_a08_epochs_are_counted_in_batches(every: int, steps: int) -> None:
    """One epoch over eight batches reads eight batches, whatever the window."""
    read: list[int] = []
    loader = (read.append(1) or 1 for _ in range(32))
    shell = sgd_shell(Weight(), Accumulate(every=every))
    fit(shell, [next(loader) for _ in range(8)], lambda model, slope: model(slope), epochs=1, progress=False)
    assert (shell.state.clock.batch, shell.state.clock.step) == (8, steps)


LOOKING = frozenset(
    {Stage.BEFORE_BACKWARD, Stage.DO_BACKWARD, Stage.AFTER_BACKWARD, Stage.BEFORE_OPTIMIZER_STEP}
    | {Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP, Stage.AFTER_BATCH}
)


@pytest.mark.parametrize("scale", [1.0, 65536.0])
@pytest.mark.parametrize("every", [1, 4])
def test_a09_everybody_sees_the_loss_that_the_user_computed(every: int, scale: float) -> None:
    """Neither the window's divisor nor the loss scale shows in what hooks, metrics and the history see."""
    seen: list[float] = []

    def look(state: TrainState, _stage: Stage) -> None:
        seen.extend((state.loss.item(), state.raw_loss.item()))

    precision = MixedPrecision(precision="fp16", init_scale=scale)
    shell = sgd_shell(Weight(1.0), [Accumulate(every=every), precision, observe("look", look, stages=LOOKING)])
    history = fit(shell, [3.0] * every, lambda model, slope: model(slope), epochs=1, progress=False)
    assert seen == [3.0] * (2 * len(LOOKING) * every)
    assert [record["loss"] for record in history.records] == [3.0] * every
