"""Exceptions before the optimizers ran: the micro-batch never happened, and only a window that had begun is emptied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    FixedLimit,
    MixedPrecision,
    Shell,
    SkipNonFinite,
    SkipSpikes,
    Stage,
)
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import STEP, Planned, half, raising, scaling, vetoing
from tests.shell.records import differences, record

BEFORE_BACKWARD = [Stage.BEFORE_BATCH, Stage.BEFORE_BACKWARD, Stage.DO_BACKWARD]
AFTER_BACKWARD = [Stage.AFTER_BACKWARD, Stage.BEFORE_OPTIMIZER_STEP, STEP]
ERRORS = [Planned, KeyboardInterrupt]
EMPTIED = "after the backward had begun and before the optimizers ran; the open window was emptied"
UNTOUCHED = "before the backward; the state is as before the batch"


FINISHED = ("['gradients']", "['saved']['state']['grads']")
"""Gradients of a window that had closed: a new one clears them at BEFORE_BATCH."""


def network() -> nn.Module:
    """Return a model with running statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def rich(every: int, precision: str, *more: Any, strict: bool = False) -> tuple[Shell, nn.Module]:
    """Return a shell with every family of hooks, a scheduler and the user's own scaler."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    hooks = [Accumulate(every=every), MixedPrecision(precision=precision), ClipNorm(max_norm=1.0), SkipNonFinite()]
    hooks += [SkipSpikes(by=FixedLimit(limit=1e3)), EMA(decay=0.5), *more]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if precision == "fp16" else None
    return Shell(model, optimizer, hooks, scheduler, scaler, strict), model


def batch(place: int) -> Tensor:
    """Return the data of a place in the run."""
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(place))


def push(shell: Shell, model: nn.Module, place: int) -> None:
    """Run one micro-batch."""
    with shell.batch():
        shell.update(model(batch(place)).float().square().mean())


def failed(error: type[BaseException], act: Callable[[], object]) -> list[str]:
    """Return the notes of the exception that an act must raise; nothing global is left behind."""
    with pytest.raises(error) as caught:
        act()
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    return caught.value.__notes__


@pytest.mark.parametrize("stage", BEFORE_BACKWARD)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("every", "precision"), [(1, "fp32"), (2, "fp16")])
def test_before_the_backward_nothing_has_happened(
    stage: Stage, error: type[BaseException], every: int, precision: str
) -> None:
    """The state is as before, gradients of an open window included, and the run goes on as if undisturbed."""
    fuse: list[BaseException] = []
    shell, model = rich(every, precision, raising(stage, fuse))
    calm, twin = rich(every, precision, raising(stage, []))
    for place in range(3):
        before = record(shell)
        fuse.append(error())
        notes = failed(error, lambda at=place: push(shell, model, at))
        cleared = FINISHED if place % every == 0 else ()
        assert [path for path in differences(before, record(shell)) if not path.startswith(cleared)] == []
        assert notes == [f"raised by hook 'bomb' at {stage.name}", f"functrain: in batch {place}, {UNTOUCHED}"]
        push(shell, model, place)
        push(calm, twin, place)
    assert differences(record(shell), record(calm)) == []


@pytest.mark.parametrize("stage", AFTER_BACKWARD)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_after_the_backward_a_window_of_one_never_happened(
    stage: Stage, error: type[BaseException], precision: str
) -> None:
    """With K=1 the run goes on bitwise as if undisturbed; gradients are gone."""
    fuse: list[BaseException] = []
    shell, model = rich(1, precision, raising(stage, fuse))
    calm, twin = rich(1, precision, raising(stage, []))
    for place in range(3):
        fuse.append(error())
        notes = failed(error, lambda at=place: push(shell, model, at))
        assert notes[-1] == f"functrain: in batch {place}, {EMPTIED}"
        assert all(leaf.grad is None for leaf in model.parameters())
        push(shell, model, place)
        push(calm, twin, place)
    assert differences(record(shell), record(calm)) == []


WINDOW = ("['window']", "['hooks']['accumulate']", "['grads']", "gradients", "['finite']", "['spikes']")


@pytest.mark.parametrize("stage", AFTER_BACKWARD)
@pytest.mark.parametrize(("micro", "strict"), [(0, False), (1, False), (2, False), (2, True)])
def test_after_the_backward_only_the_window_is_emptied(stage: Stage, micro: int, strict: bool) -> None:
    """K=3: whichever micro-batch raised, all but the window's own numbers is as before it."""
    fuse: list[BaseException] = []
    shell, model = rich(3, "fp16", raising(stage, fuse), strict=strict)
    for place in range(3 + micro):
        push(shell, model, place)
    before = record(shell)
    fuse.append(Planned())
    failed(Planned, lambda: push(shell, model, 9))
    assert [path for path in differences(before, record(shell)) if not any(part in path for part in WINDOW)] == []
    assert (shell.state.window.entered, shell.state.hooks["accumulate"]["position"]) == (0, 0)
    assert dict(shell.state.grads["main"]) == {}


@pytest.mark.parametrize("stage", AFTER_BACKWARD)
@pytest.mark.parametrize("hooks", [[], [half()]])
def test_the_next_window_counts_its_own_gradients_only(stage: Stage, hooks: list[Any]) -> None:
    """K=2, gradients 1, then 10 with an exception, then 10 and 4: 7."""
    fuse: list[BaseException] = []
    shell = sgd_shell(Weight(), [Accumulate(every=2), *hooks, raising(stage, fuse)])
    step(shell, 1.0)
    fuse.append(Planned())
    failed(Planned, lambda: step(shell, 10.0))
    run(shell, [10.0, 4.0])
    assert (applied(shell), shell.state.clock.step, shell.state.clock.batch) == (7.0, 1, 3)


def explode(_grad: Tensor) -> None:
    """Raise in a backward."""
    raise Planned


def trip(shell: Shell, model: Weight) -> None:
    """Run a micro-batch whose backward raises after it has written the gradient."""
    handle = model.w.register_post_accumulate_grad_hook(explode)
    try:
        step(shell, 100.0)
    finally:
        handle.remove()


def test_an_exception_in_the_backward_empties_the_window() -> None:
    """A gradient that was already written is gone, with the window that it was written into."""
    shell = sgd_shell(model := Weight(), [Accumulate(every=2), half()])
    step(shell, 1.0)
    assert failed(Planned, lambda: trip(shell, model)) == [f"functrain: in batch 1, {EMPTIED}"]
    run(shell, [10.0, 4.0])
    assert applied(shell) == 7.0


def broken(shell: Shell, error: type[BaseException]) -> None:
    """Open a micro-batch whose forward raises."""
    with shell.batch():
        raise error


@pytest.mark.parametrize("error", ERRORS)
def test_an_exception_in_the_forward_keeps_the_window(error: type[BaseException]) -> None:
    """K=2: the micro-batch that raised in its forward takes no place; the window completes with the next one."""
    shell = sgd_shell(Weight(), [Accumulate(every=2), half()])
    step(shell, 1.0)
    before = record(shell)
    assert failed(error, lambda: broken(shell, error)) == [f"functrain: in batch 1, {UNTOUCHED}"]
    assert differences(before, record(shell)) == []
    step(shell, 4.0)
    assert (applied(shell), scaling(shell)) == (2.5, (4.0, 1))


@pytest.mark.parametrize("loss", [None, 3.0, torch.ones(2, requires_grad=True), torch.ones(())])
def test_a_loss_that_cannot_be_used_changes_nothing(loss: Any) -> None:
    """None, a number, a vector, no graph: refused before any gradient is written; the window stays."""
    shell = sgd_shell(Weight(), [Accumulate(every=2), half()])
    step(shell, 1.0)
    before = record(shell)

    def act() -> None:
        with shell.batch():
            shell.update(loss)

    failed((TypeError, ValueError), act)  # type: ignore[arg-type]
    assert differences(before, record(shell)) == []


def test_the_users_scaler_is_taken_back_too() -> None:
    """An overflow, then an exception at AFTER_OPTIMIZER_STEP: the state goes back, and the scaler with it."""
    fuse: list[BaseException] = [Planned()]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    shell = sgd_shell(Weight(), half() + raising(Stage.AFTER_OPTIMIZER_STEP, fuse), scaler=scaler)
    failed(Planned, lambda: step(shell, float("inf")))
    assert shell.state.scaler["scale"] == scaler.get_scale() == 4.0
    run(shell, [float("inf"), 1.0])
    assert shell.state.scaler["scale"] == scaler.get_scale() == 2.0
    assert applied(shell) == 1.0


def test_a_skipped_batch_that_raises_did_not_happen() -> None:
    """No optimizer ran, so an exception at AFTER_OPTIMIZER_STEP of a vetoed batch leaves no count."""
    fuse: list[BaseException] = [Planned()]
    shell = sgd_shell(Weight(), vetoing({0}) + raising(Stage.AFTER_OPTIMIZER_STEP, fuse))
    failed(Planned, lambda: step(shell, 1.0))
    assert (shell.state.clock.batch, shell.state.clock.skipped) == (0, 0)
    run(shell, [1.0, 2.0])
    assert (applied(shell), shell.state.clock.skipped) == (2.0, 1)
