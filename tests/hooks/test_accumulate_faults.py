"""Cases a10 to a16: windows with something wrong in them, and steps that are vetoed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD

from functrain import Accumulate, Shell, SkipLimitError, SkipNonFinite, Stage, TrainState, fit, hook
from tests.scalars import Weight, applied, run, sgd_shell, step

NAN = float("nan")


@pytest.mark.parametrize("place", range(4))
def test_a10_a_nan_is_left_out_of_its_window(place: int) -> None:
    """One NaN among ones, wherever it stands, leaves the mean of the others and one step."""
    shell = sgd_shell(Weight(), Accumulate(every=4) + SkipNonFinite())
    run(shell, [NAN if each == place else 1 for each in range(4)])
    assert (applied(shell), shell.state.clock.step, shell.state.clock.skipped) == (1.0, 1, 0)


@given(slopes=st.lists(st.sampled_from([NAN, float("inf"), 1, 2, 5]), min_size=1, max_size=5))
def test_a10_a_window_applies_the_mean_of_what_is_finite(slopes: list[float]) -> None:
    """Any pattern of NaN: the mean of the valid ones, or one skip if there are none; the next window is clean."""
    shell = sgd_shell(Weight(), Accumulate(every=len(slopes)) + SkipNonFinite())
    run(shell, slopes)
    valid = [slope for slope in slopes if slope in (1, 2, 5)]
    right = sum(valid) / len(valid) if valid else 0.0
    assert applied(shell) == pytest.approx(right)
    assert (shell.state.clock.step, shell.state.clock.skipped) == (int(bool(valid)), int(not valid))
    run(shell, [3] * len(slopes))
    assert applied(shell) == pytest.approx(right + 3.0)


def test_a11_an_auxiliary_loss_counts_once_per_window() -> None:
    """Main (4+4)/8 and an auxiliary gradient of 1 beside each: 1 and 1."""
    assert main_and_auxiliary([4, 4]) == pytest.approx([1.0, 1.0])


@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_a11_any_weights_leave_an_auxiliary_loss_as_it_is(weights: list[int]) -> None:
    """Whatever the weights, a constant auxiliary gradient beside the mean loss is applied once."""
    assert main_and_auxiliary(weights) == pytest.approx([1.0, 1.0])


def main_and_auxiliary(weights: list[int]) -> Any:
    """Return what a main loss of mean gradient 1 and a regulariser of gradient 1, added by a hook, apply."""

    @hook(stages=Stage.DO_BACKWARD)
    def auxiliary(state: TrainState, stage: Stage, will_skip: Any) -> Any:
        return state, True, state.loss + state.params["main"]["w"][1]

    shell = sgd_shell(Weight([0.0, 0.0]), Accumulate(every=len(weights)) + auxiliary)
    for weight in weights:
        step(shell, [1.0, 0.0], weight=weight)
    return applied(shell)


def raising_shell(stage: Stage, every: int = 2) -> tuple[Shell, list[Stage]]:
    """Return a shell in which the stage raises once for each entry of the list."""
    armed: list[Stage] = []

    @hook(stages=stage)
    def fragile(state: TrainState, stage: Stage, will_skip: Any) -> Any:
        if armed:
            armed.pop()
            raise ArithmeticError
        return state, True, state.loss

    return sgd_shell(Weight(), Accumulate(every=every) + fragile), armed


@pytest.mark.parametrize("stage", [Stage.AFTER_BACKWARD, Stage.BEFORE_OPTIMIZER_STEP, Stage.DO_OPTIMIZER_STEP])
def test_a12_an_exception_after_the_backward_drops_the_window(stage: Stage) -> None:
    """After 1 and a 10 that raised behind its backward, the next 10 opens a window: (10 + 4) / 2."""
    shell, armed = raising_shell(stage)
    step(shell, 1)
    armed.append(stage)
    with pytest.raises(ArithmeticError):
        step(shell, 10)
    run(shell, [10, 4])
    assert (applied(shell), shell.state.clock.step) == (7.0, 1)


@pytest.mark.parametrize("stage", [Stage.BEFORE_BATCH, Stage.BEFORE_BACKWARD, Stage.DO_BACKWARD])
def test_a12_an_exception_before_the_backward_keeps_the_window(stage: Stage) -> None:
    """A 10 that raised in front of its backward never happened: repeated, it completes the window of 1."""
    shell, armed = raising_shell(stage)
    step(shell, 1)
    armed.append(stage)
    with pytest.raises(ArithmeticError):
        step(shell, 10)
    run(shell, [10])
    assert (applied(shell), shell.state.clock.step) == (5.5, 1)


@given(before=st.integers(0, 3), slopes=st.lists(st.integers(-8, 8), min_size=4, max_size=4))
def test_a12_the_next_window_is_whole_wherever_one_was_dropped(before: int, slopes: list[int]) -> None:
    """An exception behind the backward of any micro-batch of a window: the next four make a window of their own."""
    shell, armed = raising_shell(Stage.AFTER_BACKWARD, every=4)
    run(shell, [7] * before)
    armed.append(Stage.AFTER_BACKWARD)
    with pytest.raises(ArithmeticError):
        step(shell, 100)
    run(shell, slopes)
    assert (applied(shell), shell.state.clock.step) == (sum(slopes) / 4, 1)


def vetoed_epoch(limit: int | None, every: int = 1, batches: int = 4) -> Shell:
    """Return a shell on which an epoch of NaN losses is to be trained."""
    shell = sgd_shell(Weight(), Accumulate(every=every) + SkipNonFinite(max_consecutive=limit))
    fit(shell, [NAN] * batches, lambda model, slope: model(slope), epochs=1, progress=False)
    return shell


def test_a15_an_epoch_in_which_every_step_is_vetoed_ends() -> None:
    """Four vetoed steps under a limit of ten are four skips, and the epoch is over."""
    clock = vetoed_epoch(limit=10).state.clock
    assert (clock.batch, clock.step, clock.skipped, clock.epoch) == (4, 0, 4, 1)


@given(limit=st.integers(0, 5), batches=st.integers(1, 7))
def test_a15_a_limit_is_met_exactly(limit: int, batches: int) -> None:
    """SkipLimitError comes with the first skip past the limit, not before and not after."""
    shell = sgd_shell(Weight(), Accumulate(every=1) + SkipNonFinite(max_consecutive=limit))
    run(shell, [NAN] * min(limit, batches))
    if batches > limit:
        with pytest.raises(SkipLimitError, match=rf"{limit + 1} optimizer steps in a row.*since batch 0"):
            step(shell, NAN)
    assert shell.state.clock.batch == min(batches, limit + 1)


def test_a15_the_limit_is_reached_at_batch_three() -> None:
    """Under a limit of two the third vetoed step raises."""
    with pytest.raises(SkipLimitError, match="3 optimizer steps in a row"):
        vetoed_epoch(limit=2)


@pytest.mark.parametrize("limit", [1, 2])
def test_a15_waiting_is_no_skip(limit: int) -> None:
    """Four vetoed micro-batches in one window are one skip, so no limit of one or more is passed."""
    clock = vetoed_epoch(limit, every=4).state.clock
    assert (clock.batch, clock.skipped, clock.consecutive_skips) == (4, 1, 1)


@given(every=st.integers(1, 5), windows=st.integers(1, 4))
def test_a15_good_windows_never_skip(every: int, windows: int) -> None:
    """Under a limit of zero a run without faults passes, however long its windows are."""
    shell = sgd_shell(Weight(), Accumulate(every=every) + SkipNonFinite(max_consecutive=0))
    run(shell, [1] * (every * windows))
    assert (shell.state.clock.step, shell.state.clock.skipped) == (windows, 0)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a16_weight_decay_is_applied_once_per_window(every: int) -> None:
    """A weight of 1 under decay .1 and gradients of 0 is .9 after one window of any length."""
    model = Weight(1.0)
    shell = Shell(model, SGD(model.parameters(), lr=1.0, weight_decay=0.1), Accumulate(every=every))
    run(shell, [0] * every)
    assert model.w.item() == pytest.approx(0.9)
