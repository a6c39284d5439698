"""Exceptions once an optimizer has run: the step counts, the window is closed, and training goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from functrain import EMA, Accumulate, FixedLimit, Shell, SkipNonFinite, SkipSpikes, Stage
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import Planned, half, pair_applied, raising, scaling, step_pair

COUNTS = "after the optimizers ran; the step counts"
AFTER = Stage.AFTER_OPTIMIZER_STEP


def notes(shell: Shell, slope: float, error: type[BaseException] = Planned) -> list[str]:
    """Run a micro-batch that must raise, and return the notes of its exception."""
    with pytest.raises(error) as caught:
        step(shell, slope)
    assert torch.is_grad_enabled()
    return caught.value.__notes__


@pytest.mark.parametrize("priority", [0, 10, 30, 50, 99])
@pytest.mark.parametrize("error", [Planned, KeyboardInterrupt])
@pytest.mark.parametrize("strict", [False, True])
def test_after_the_step_it_counts(priority: int, error: type[BaseException], strict: bool) -> None:
    """K=2: whichever hook raised after the step, clocks have it, the window is closed, the next one is clean."""
    fuse: list[BaseException] = []
    hooks = [Accumulate(every=2), half(), SkipNonFinite(), raising(AFTER, fuse, priority=priority)]
    shell = sgd_shell(Weight(), hooks, strict=strict)
    step(shell, 1.0)
    fuse.append(error())
    told = [f"raised by hook 'bomb' at {AFTER.name}", f"functrain: in batch 1, {COUNTS}"]
    assert notes(shell, 3.0, error) == told
    assert (applied(shell), shell.state.clock.step, shell.state.clock.batch) == (2.0, 1, 2)
    assert (dict(shell.state.stepped), scaling(shell), shell.state.window.entered) == ({"main": True}, (4.0, 1), 0)
    run(shell, [5.0, 7.0])
    assert (applied(shell), shell.state.clock.step, shell.state.clock.batch) == (8.0, 2, 4)


def test_hooks_forget_the_window_that_stepped() -> None:
    """A spike hook that was not reached does not judge the next window by the losses of the one before."""
    fuse: list[BaseException] = [Planned()]
    spikes = SkipSpikes(by=FixedLimit(limit=10.0))
    shell = sgd_shell(Weight(-5.0), [spikes, raising(AFTER, fuse, priority=0)])
    notes(shell, -1.0)
    shell.state.hooks["spikes"]["statistic"]["limit"].fill_(4.5)
    step(shell, -1.0)
    assert (applied(shell), shell.state.clock.skipped) == (3.0, 0)


def test_averages_keep_what_was_done_before() -> None:
    """An average that had moved before another hook raised stays moved; each step moves it at most once."""
    fuse: list[BaseException] = []
    shell = sgd_shell(Weight(), [EMA(decay=0.5), raising(AFTER, fuse, priority=60)])
    step(shell, -1.0)
    fuse.append(Planned())
    notes(shell, -1.0)
    assert (shell.state.hooks["ema"]["n_averaged"], shell.averaged_module().w.item()) == (2, 1.5)
    step(shell, -1.0)
    assert shell.averaged_module().w.item() == 2.25


class Fused(SGD):
    """An optimizer that raises what lies in its fuse."""

    fuse: Any = ()

    def step(self, closure: Any = None) -> Any:
        """Raise, or step."""
        if self.fuse:
            raise self.fuse.pop()
        return super().step(closure)


class FusedLR(StepLR):
    """A scheduler that raises what lies in its fuse."""

    fuse: Any = ()

    def step(self, epoch: Any = None) -> None:
        """Raise, or step."""
        if self.fuse:
            raise self.fuse.pop()
        super().step(epoch)


def fused(hooks: Any) -> tuple[Shell, dict[str, Fused], dict[str, FusedLR]]:
    """Return a shell of two models whose optimizers and schedulers can raise."""
    models = {"a": Weight(), "b": Weight()}
    optimizers = {key: Fused(each.parameters(), lr=1.0) for key, each in models.items()}
    schedulers = {key: FusedLR(each, 1, gamma=0.5) for key, each in optimizers.items()}
    return Shell(models, optimizers, hooks, schedulers), optimizers, schedulers


def both_raise(shell: Shell, **slopes: float) -> str:
    """Run a micro-batch of both models that must raise, and return the notes."""
    with pytest.raises(Planned) as caught:
        step_pair(shell, **slopes)
    return "\n".join(caught.value.__notes__)


def rates(optimizers: dict[str, Fused]) -> dict[str, float]:
    """Return the learning rates."""
    return {key: each.param_groups[0]["lr"] for key, each in optimizers.items()}


def averages(shell: Shell) -> list[int]:
    """Return how often each average was moved."""
    return [shell.state.hooks[name]["n_averaged"] for name in ("ema_a", "ema_b")]


BOTH = [EMA(model_key="a"), EMA(model_key="b")]


@pytest.mark.parametrize("hooks", [[], [half()]])
def test_the_first_optimizer_raises(hooks: list[Any]) -> None:
    """None had stepped: the batch never happened, and the note says so."""
    shell, optimizers, _ = fused([*hooks, *BOTH])
    optimizers["a"].fuse = [Planned()]
    told = both_raise(shell, a=1.0, b=2.0)
    assert "optimizer 'a' raised; those that had stepped before it: []" in told
    assert (pair_applied(shell), shell.state.clock.batch, averages(shell)) == ({"a": 0.0, "b": 0.0}, 0, [0, 0])
    step_pair(shell, a=1.0, b=2.0)
    assert (pair_applied(shell), averages(shell)) == ({"a": 1.0, "b": 2.0}, [1, 1])


@pytest.mark.parametrize("hooks", [[], [half()]])
def test_the_second_optimizer_raises(hooks: list[Any]) -> None:
    """The first one's step counts, for its scheduler and its average too; the other's does not."""
    shell, optimizers, _ = fused([*hooks, *BOTH])
    optimizers["b"].fuse = [Planned()]
    told = both_raise(shell, a=1.0, b=2.0)
    assert "optimizer 'b' raised; those that had stepped before it: ['a']" in told
    assert COUNTS in told
    assert (pair_applied(shell), dict(shell.state.stepped)) == ({"a": 1.0, "b": 0.0}, {"a": True, "b": False})
    assert dict(shell.state.clock.optimizer_steps) == {"a": 1, "b": 0}
    assert (rates(optimizers), averages(shell)) == ({"a": 0.5, "b": 1.0}, [1, 0])
    step_pair(shell, a=2.0, b=2.0)
    assert (pair_applied(shell), shell.state.clock.step) == ({"a": 2.0, "b": 2.0}, 2)


def test_an_overflow_beside_an_optimizer_that_raises_backs_off() -> None:
    """One overflowed, the next stepped, the third raised: the scale backs off, since the step counts."""
    models = {key: Weight() for key in "abc"}
    optimizers = {key: Fused(each.parameters(), lr=1.0) for key, each in models.items()}
    shell = Shell(models, optimizers, half())
    optimizers["c"].fuse = [Planned()]
    both_raise(shell, a=float("inf"), b=1.0, c=1.0)
    assert (pair_applied(shell), scaling(shell)) == ({"a": 0.0, "b": 1.0, "c": 0.0}, (2.0, 0))
    assert dict(shell.state.stepped) == {"a": False, "b": True, "c": False}


@pytest.mark.parametrize("guilty", ["a", "b"])
@pytest.mark.parametrize("hooks", [[], [half()]])
def test_a_scheduler_raises(guilty: str, hooks: list[Any]) -> None:
    """All optimizers had stepped, so everything counts; the other scheduler and the averages have seen it."""
    shell, optimizers, schedulers = fused([*hooks, *BOTH, Accumulate(every=1)])
    schedulers[guilty].fuse = [Planned()]
    assert COUNTS in both_raise(shell, a=1.0, b=2.0)
    assert (pair_applied(shell), dict(shell.state.stepped)) == ({"a": 1.0, "b": 2.0}, {"a": True, "b": True})
    assert (shell.state.clock.step, shell.state.clock.batch, averages(shell)) == (1, 1, [1, 1])
    assert rates(optimizers) == {key: 1.0 if key == guilty else 0.5 for key in "ab"}
    step_pair(shell, a=0.0, b=0.0)
    assert (pair_applied(shell), shell.state.clock.step) == ({"a": 1.0, "b": 2.0}, 2)


@pytest.mark.parametrize("stage", [Stage.BEFORE_OPTIMIZER_STEP, Stage.DO_OPTIMIZER_STEP, AFTER])
def test_an_exception_in_a_flush(stage: Stage) -> None:
    """Before the step the partial window is emptied, after it the step counts; the next window is clean."""
    fuse: list[BaseException] = []
    shell = sgd_shell(Weight(), [Accumulate(every=3), half(), raising(stage, fuse, priority=5)])
    run(shell, [1.0, 3.0])
    fuse.append(Planned())
    with pytest.raises(Planned) as caught:
        shell.flush()
    after = stage is AFTER
    assert COUNTS in caught.value.__notes__[-1] if after else "was emptied" in caught.value.__notes__[-1]
    assert (applied(shell), shell.state.clock.step, shell.state.clock.batch) == (2.0 * after, int(after), 2)
    run(shell, [1.0, 2.0, 3.0])
    assert applied(shell) == 2.0 * after + 2.0


STAGES = [Stage.BEFORE_BATCH, Stage.BEFORE_BACKWARD, Stage.DO_BACKWARD, Stage.AFTER_BACKWARD]
STAGES += [Stage.BEFORE_OPTIMIZER_STEP, Stage.DO_OPTIMIZER_STEP, AFTER]


@given(
    every=st.integers(1, 3),
    script=st.lists(st.tuples(st.integers(-8, 8), st.none() | st.sampled_from(STAGES)), max_size=10),
    priority=st.sampled_from([0, 15, 25, 60]),
    precision=st.sampled_from(["fp32", "fp16"]),
)
def test_any_pattern_of_exceptions(every: int, script: list[Any], priority: int, precision: str) -> None:
    """Whatever raises where: each window that closes applies the mean of exactly what is in it."""
    fuses: dict[Stage, list[BaseException]] = {stage: [] for stage in STAGES}
    bombs = [raising(stage, fuse, priority=priority, name=stage.name) for stage, fuse in fuses.items()]
    shell = sgd_shell(Weight(), [Accumulate(every=every), half(precision=precision), *bombs])
    window: list[int] = []
    right = steps = 0.0
    for slope, stage in script:
        if stage is not None:
            fuses[stage].append(Planned())
            notes(shell, slope)
        else:
            step(shell, slope)
        taken = [*window, slope] if stage in (None, AFTER) else window
        if len(taken) == every and stage in (None, AFTER):
            right, steps, window = right + sum(taken) / every, steps + 1, []
        elif stage in STAGES[:3] or stage is None:
            window = taken
        else:
            window = []
    assert (applied(shell), shell.state.clock.step) == (pytest.approx(right, rel=1e-5, abs=1e-5), steps)
    assert shell.state.window.entered == len(window)
