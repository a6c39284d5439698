"""Exceptions in the loop of `fit`: each stage, the validation, the loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from functrain import EMA, Accumulate, MixedPrecision, Shell, Stage, fit
from tests.scalars import Weight, applied, run, sgd_shell
from tests.scripted import Planned, raising
from tests.shell.records import differences, record

INSIDE = [Stage.BEFORE_FORWARD, Stage.AFTER_FORWARD, Stage.BEFORE_LOSS, Stage.AFTER_LOSS]
OUTSIDE = {
    Stage.BEFORE_TRAINING: (0, 0, 0),
    Stage.BEFORE_EPOCH: (0, 0, 0),
    Stage.AFTER_BATCH: (1, 0, 0),
    Stage.AFTER_EPOCH: (3, 2, 0),
    Stage.AFTER_VALIDATION: (3, 2, 0),
    Stage.AFTER_TRAINING: (3, 2, 1),
}
"""Micro-batches, steps and epochs that count when one hook raises at the stage."""


def loss_fn(model: Weight, slope: float) -> Any:
    """Return a loss whose gradient is the slope."""
    return model(slope)


def shell_with(*hooks: Any) -> Shell:
    """Return a shell with a window of two, an average, and low precision."""
    return sgd_shell(Weight(), [Accumulate(every=2), MixedPrecision(precision="bf16"), EMA(decay=0.5), *hooks])


def epoch(shell: Shell, slopes: Any = (1.0, 3.0, 5.0), **options: Any) -> Any:
    """Fit one epoch."""
    return fit(shell, slopes, loss_fn, epochs=1, progress=False, **options)


def failed(shell: Shell, error: type[BaseException] = Planned, **options: Any) -> list[str]:
    """Fit an epoch that must raise, and return the notes of the exception; nothing global is left behind."""
    with pytest.raises(error) as caught:
        epoch(shell, **options)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    return getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize("stage", INSIDE)
@pytest.mark.parametrize("error", [Planned, KeyboardInterrupt])
def test_around_the_forward_the_micro_batch_never_happened(stage: Stage, error: type[BaseException]) -> None:
    """Forward, loss and what stands around them: the state is as before, and the epoch can be run again."""
    fuse: list[BaseException] = [error()]
    shell = shell_with(raising(stage, fuse))
    before = record(shell)
    told = [f"raised by hook 'bomb' at {stage.name}", "functrain: in batch 0, before the backward; "]
    assert [note[: len(start)] for note, start in zip(failed(shell, error), told, strict=True)] == told
    assert differences(before, record(shell)) == []
    epoch(shell)
    assert (applied(shell), shell.state.clock.batch, shell.state.clock.epoch) == (7.0, 3, 1)


@pytest.mark.parametrize("stage", OUTSIDE)
@pytest.mark.parametrize("error", [Planned, KeyboardInterrupt])
def test_between_micro_batches_what_was_done_counts(stage: Stage, error: type[BaseException]) -> None:
    """The other stages: what had been presented and stepped is counted, and training goes on from there."""
    fuse: list[BaseException] = [error()]
    shell = shell_with(raising(stage, fuse))
    assert f"raised by hook 'bomb' at {stage.name}" in failed(shell, error, validate=lambda model: model.w.item())
    clock = shell.state.clock
    assert (clock.batch, clock.step, clock.epoch) == OUTSIDE[stage]
    done = applied(shell)
    shell.flush()
    left = applied(shell)
    assert left - done == (1.0 if stage is Stage.AFTER_BATCH else 0.0)
    run(shell, [2.0, 4.0])
    assert applied(shell) == left + 3.0


@pytest.mark.parametrize("error", [Planned, KeyboardInterrupt])
def test_a_validation_that_raises_leaves_raw_weights_and_modes(error: type[BaseException]) -> None:
    """Averages are swapped back and each module is in the mode it was in."""
    seen: list[float] = []

    def validate(model: nn.Module) -> float:
        seen.append(model[0].w.item())
        assert not model[0].training
        raise error

    model = nn.Sequential(Weight(), nn.Dropout().eval())
    shell = sgd_shell(model, EMA(decay=0.5))
    with pytest.raises(error):
        fit(shell, [1.0, 1.0], lambda held, slope: held[0](slope), epochs=1, validate=validate, progress=False)
    assert (seen, model[0].w.item()) == ([-1.5], -2.0)
    assert [part.training for part in model.modules()] == [True, True, False]
    assert torch.is_grad_enabled()


def broken_loader() -> Iterator[float]:
    """Yield three slopes, then raise."""
    yield from (1.0, 3.0, 5.0)
    raise Planned


def test_a_loader_that_raises_leaves_the_open_window_to_flush() -> None:
    """What the loader had given before is counted; the partial window waits for flush()."""
    shell = shell_with()
    failed(shell, slopes=broken_loader())
    presented = shell.state.clock.batch
    assert presented == 2
    shell.flush()
    assert (applied(shell), shell.state.clock.epoch) == (2.0, 1)


@pytest.mark.parametrize("place", ["forward", "loss"])
def test_a_forward_or_loss_that_raises_says_where(place: str) -> None:
    """The exception names the batch and what became of it."""
    shell = shell_with()

    def explode(*_: Any) -> Any:
        raise Planned

    parts: dict[str, Any] = {"forward": loss_fn, "loss_fn": lambda out, _batch: out}
    parts["forward" if place == "forward" else "loss_fn"] = explode
    with pytest.raises(Planned) as caught:
        fit(shell, [1.0], epochs=1, progress=False, **parts)
    assert caught.value.__notes__ == ["functrain: in batch 0, before the backward; the state is as before the batch"]
