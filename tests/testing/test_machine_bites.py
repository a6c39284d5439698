"""Faults that were planted, in hooks, in optimizers and in the shell itself: the machine finds each."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from functrain import EMA, Accumulate, ClipNorm, Hook, MixedPrecision, Outcome, SkipNonFinite, Stage, TrainState
from functrain._clock import Clock
from functrain.shell import dictionaries, microbatch
from functrain.shell import shell as shell_module
from functrain.shell.apply import Applier
from functrain.shell.microbatch import MicroBatch
from functrain.shell.models import Models
from functrain.shell.shown import Shown
from functrain.testing.differences import Disagreement
from functrain.testing.machine import TrainingMachine
from functrain.testing.machine_of import training_machine
from tests.testing.runs import batches, counted_outside, mean_square, normed, sgd

FIND = settings(
    max_examples=200,
    stateful_step_count=25,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=[*HealthCheck],
)
FREE: Any = {"max_consecutive": None}


class Eager(EMA):
    """An average that follows skips, too."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Move the shadow, whatever the step did; by a step of its own, which shows where nothing has moved."""
        slot = state.hooks[self.name]
        shadow = {name: leaf + 1.0 for name, leaf in slot["shadow"].items()}
        return super().update(state.with_slot(self.name, slot | {"shadow": shadow}), stage, will_skip)


class Blind(SkipNonFinite):
    """A guard that lets everything through."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Say yes."""
        del stage, will_skip
        return Outcome(state, True, state.loss)


def machine(*hooks: Any, **options: Any) -> type[TrainingMachine]:
    """Return a machine with these hooks."""
    return training_machine(model=normed, loss_fn=mean_square, optimizer=sgd, batches=batches(), hooks=hooks, **options)


def caught(made: type[TrainingMachine]) -> str:
    """Return what the machine says of a fault."""
    with pytest.raises(Disagreement) as error:
        run_state_machine_as_test(made, settings=FIND)
    return str(error.value)


def rich() -> list[Hook]:
    """Return a pipeline of every family."""
    precision = MixedPrecision(precision="fp16", init_scale=1024.0, growth_interval=1, **FREE)
    return [Accumulate(every=2), precision, ClipNorm(max_norm=1.0), SkipNonFinite(**FREE), EMA(decay=0.5)]


def test_an_undisturbed_pipeline_passes() -> None:
    """The pipeline in which faults are planted below has none."""
    run_state_machine_as_test(machine(*rich()), settings=settings(FIND, max_examples=5, stateful_step_count=12))


HOOKS: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "counts on itself": (lambda: [counted_outside()], "shell and pure engine differ"),
    "averages skipped steps": (lambda: [SkipNonFinite(**FREE), Eager()], '["hooks"]["ema"]["0.weight"]: '),
    "guards nothing": (lambda: [Blind()], "parameters and finite ones differ"),
}


@pytest.mark.parametrize("fault", HOOKS)
def test_a_broken_hook_is_found(fault: str) -> None:
    """A user's hook that breaks a global law is found, and the law is named."""
    hooks, message = HOOKS[fault]
    drawn = st.builds(hooks)  # each run gets hooks of its own, as it would from a user's function
    made = training_machine(model=normed, loss_fn=mean_square, optimizer=sgd, batches=batches(), hooks=drawn)
    assert message in caught(made)


def stepping_on_skips(original: Any) -> Any:
    """Step whatever was decided."""
    return lambda self, state, proceed: original(self, state, proceed or True)


def forgetting_the_scaler(original: Any) -> Any:
    """Restore everything else."""

    def restore(driver: Any, taken: Any) -> None:
        scaler = driver.state.scaler
        original(driver, taken)
        driver.state = driver.state.replace(scaler=scaler)

    return restore


def forgetting_the_window(original: Any) -> Any:
    """Load everything else."""
    return lambda state, stored: original(state, stored).replace(window=state.window)


def not_swapping_back(_original: Any) -> Any:
    """Leave the average in the model where something was raised."""

    @contextmanager
    def showing(self: Any, key: str, slot: Any, _settle: Any = None) -> Generator[None]:
        token = object()
        self._keep(key, slot)
        self.entered[token] = (key, slot)
        self._write(key, slot["shadow"], slot["buffers"])
        yield
        self._uncover(token, key)

    return showing


def not_counting_skips(original: Any) -> Any:
    """Count steps only, in both interpreters."""
    return lambda self, *args: original(self, *args).replace(skipped=self.skipped)


def counting_twice(original: Any) -> Any:
    """Count a micro-batch twice, in both interpreters."""
    return lambda self, boundary, stepped, ran, presented: original(self, boundary, stepped, ran, 2 * presented)


def leaving_gradients_off(original: Any) -> Any:
    """Switch gradients off for good where something was raised."""

    def give_up(self: Any, error: BaseException) -> None:
        original(self, error)
        torch.set_grad_enabled(False)

    return give_up


def keeping_gradients(_original: Any) -> Any:
    """Discard nothing."""
    return lambda self, state: self.read_gradients(state)


def nothing(_original: Any) -> Any:
    """Do nothing."""
    return lambda *_: None


PATCHES: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "an optimizer is stepped on a skip": (Applier, "step", stepping_on_skips, "differ"),
    "restore forgets the scaler": (shell_module, "restore", forgetting_the_scaler, 'shell["state"]["scaler"]'),
    "a state dict forgets the window": (dictionaries, "merged_state", forgetting_the_window, '["window"]'),
    "an average stays in the model": (
        Shown,
        "showing",
        not_swapping_back,
        'averages["shown"]: True != False',
    ),
    "skips are not counted": (Clock, "updated", not_counting_skips, 'state.clock["step + skipped"]: '),
    "batches are counted twice": (Clock, "updated", counting_twice, 'state.clock["batch"]: '),
    "gradients are left off": (MicroBatch, "_give_up", leaving_gradients_off, 'contexts["gradients"]: False != True'),
    "a discarded window keeps gradients": (Applier, "discard_gradients", keeping_gradients, "differ"),
    "a drop keeps its statistics": (Models, "restore_buffers", nothing, '["1.running_mean"]'),
}


@pytest.mark.parametrize("fault", PATCHES)
def test_a_broken_shell_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the interpreter itself is found, too, whichever hooks it runs."""
    home, name, plant, message = PATCHES[fault]
    monkeypatch.setattr(home, name, plant(getattr(home, name)))
    beside_pure = fault == "a drop keeps its statistics"  # the others show in a shell alone, which is faster
    assert message in caught(machine(*rich(), beside_pure=beside_pure))


def test_a_limit_that_is_not_raised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell has to raise where the pure run is past a limit."""
    monkeypatch.setattr(microbatch, "check_limits", lambda _: None)
    message = caught(machine(SkipNonFinite(max_consecutive=0)))
    assert "raises SkipLimitError: False != True" in message


def test_autocast_that_is_left_open_is_found_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that outlives its batch is found, and the next run does not inherit it."""
    monkeypatch.setattr(MicroBatch, "_leave_autocast", lambda self: setattr(self._driver, "autocasting", False))
    assert 'contexts["autocast on cpu"]: True != False' in caught(machine(*rich(), beside_pure=False))
    assert not torch.is_autocast_enabled("cpu")
    torch.autocast_increment_nesting()
    assert torch.autocast_decrement_nesting() == 0
