"""The rows "Orchestrator" of the contract: optimizers, schedulers, counters, and the life of a run."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

from functrain import EMA, Hook, MixedPrecision, Shell, Stage
from tests.contract.toys import Call, push, recorder, scalar, script, shell_of, train, watcher

STEP = Stage.DO_OPTIMIZER_STEP
AFTER = Stage.AFTER_OPTIMIZER_STEP


def pair(hooks: object, *, schedule: bool = True) -> tuple[Shell, nn.ModuleDict, list[SGD]]:
    """Build a shell of two models, each with its own optimizer whose learning rate halves at every step."""
    models = nn.ModuleDict({"a": scalar(), "b": scalar()})
    optimizers = [SGD(model.parameters(), lr=1.0) for model in models.values()]
    schedulers = [StepLR(optimizer, 1, 0.5) for optimizer in optimizers] if schedule else None
    return (
        Shell(dict(models), dict(zip("ab", optimizers, strict=True)), hooks, schedulers),
        models,
        optimizers,
    )


def half(**options: Any) -> MixedPrecision:
    """Build a float16 hook with a scale of 4."""
    return MixedPrecision(precision="float16", **{"init_scale": 4.0, **options})


def advance(shell: Shell, models: nn.ModuleDict, a: float, b: float) -> None:
    """Run one micro-batch with a gradient for each model."""
    with shell.batch():
        shell.update(push(models["a"], a) + push(models["b"], b))


def test_step_veto_skips_optimizers_and_schedulers() -> None:
    """Any veto at DO_OPTIMIZER_STEP skips every optimizer and every scheduler."""
    shell, models, optimizers = pair(script(STEP, {0}))
    advance(shell, models, 1.0, 1.0)
    assert [model.weight.item() for model in models.values()] == [0.0, 0.0]
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [1.0, 1.0]


def test_optimizers_step_first_then_schedulers_that_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a scaler: each optimizer, then each scheduler that is neither None nor metric-driven."""
    model, calls = nn.ModuleDict({name: scalar() for name in "abc"}), []
    optimizers = {name: SGD(model[name].parameters(), lr=1.0) for name in "abc"}
    for name, optimizer in optimizers.items():
        optimizer.register_step_post_hook(lambda *_args, name=name: calls.append(name))
    schedulers = [LambdaLR(optimizers["a"], lambda _: 1.0), None, ReduceLROnPlateau(optimizers["c"])]
    shell = Shell(model, optimizers, Hook(), schedulers)
    for name, scheduler in (("due", schedulers[0]), ("metric", schedulers[2])):
        monkeypatch.setattr(scheduler, "step", lambda *_args, name=name: calls.append(name))
    train(shell, model, 1.0)
    assert calls == ["a", "b", "c", "due"]


def test_a_scheduler_follows_its_own_optimizer() -> None:
    """With a scaler a scheduler advances only if its own optimizer stepped."""
    shell, models, optimizers = pair(half())
    advance(shell, models, float("inf"), 1.0)
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [1.0, 0.5]
    assert [model.weight.item() for model in models.values()] == [0.0, -1.0]
    assert shell.state.scaler["scale"] == 2.0


@pytest.mark.parametrize("schedule", [False, True])
def test_a_skip_is_judged_by_found_inf(schedule: bool) -> None:
    """An overflow at the lowest scale, which cannot fall, is a skip, with or without schedulers (lifted)."""
    shell, models, _ = pair(half(init_scale=1.0, min_scale=1.0), schedule=schedule)
    advance(shell, models, float("inf"), float("inf"))
    assert shell.state.scaler["scale"] == 1.0
    assert not any(shell.state.stepped.values())
    assert (shell.state.clock.step, shell.state.clock.skipped) == (0, 1)


def test_a_partial_step_counts_and_is_followed_by_its_own() -> None:
    """A partial step counts, `will_skip` is False, averages follow their own optimizers (lifted)."""
    log: list[Call] = []
    averages = EMA(model_key="a", decay=0.5) + EMA(model_key="b", decay=0.5)
    shell, models, _ = pair([half(), averages, recorder("late", log, stages=AFTER)])
    advance(shell, models, float("inf"), 1.0)
    assert dict(shell.state.stepped) == {"a": False, "b": True}
    assert (shell.state.clock.step, dict(shell.state.clock.optimizer_steps)) == (1, {"a": 0, "b": 1})
    assert log == [("late", AFTER, False)]
    assert shell.averaged_module("ema_b").weight.item() == -1.0
    with pytest.raises(RuntimeError):
        shell.averaged_module("ema_a")


def test_after_step_every_hook_hears_whether_it_was_skipped() -> None:
    """At AFTER_OPTIMIZER_STEP each hook gets `will_skip` = skipped, whatever the others return."""
    log: list[Call] = []
    hooks = [
        script(STEP, {0}),
        recorder("a", log, {AFTER: False}, stages=AFTER),
        recorder("b", log, stages=AFTER),
    ]
    train(shell_of(model := scalar(), hooks), model, 1.0, 1.0)
    assert log == [(name, AFTER, skipped) for skipped in (True, False) for name in "ab"]


def test_before_any_step_nothing_is_skipped() -> None:
    """Before any step `will_skip` is False: SETUP says so, and nothing counts as skipped."""
    log: list[Call] = []
    shell = shell_of(scalar(), recorder("a", log, stages=Stage.SETUP))
    assert log == [("a", Stage.SETUP, False)]
    assert (shell.state.clock.skipped, shell.state.veto(STEP, "a")) == (0, False)


@pytest.mark.parametrize("vetoed", [False, True])
def test_without_optimizers_a_veto_still_reads_true(vetoed: bool) -> None:
    """With no optimizers `will_skip` at AFTER_OPTIMIZER_STEP is True after a veto, else False."""
    log: list[Call] = []
    hooks = [script(STEP, {0} if vetoed else ()), recorder("a", log, stages=AFTER)]
    train(Shell(model := scalar(), [], hooks), model, 1.0)
    assert log == [("a", AFTER, vetoed)]


def test_counters_advance_after_the_last_stage() -> None:
    """`completed = step + 1` at AFTER_OPTIMIZER_STEP; batches always advance, steps only if stepped."""
    seen: list[tuple[int, int]] = []
    watch = watcher(AFTER, lambda state: seen.append((state.clock.step, state.clock.batch)))
    train(shell := shell_of(model := scalar(), [watch, script(STEP, {1})]), model, 1.0, 1.0, 1.0)
    assert seen == [(0, 0), (1, 1), (1, 2)]
    assert (shell.state.clock.step, shell.state.clock.batch, shell.state.clock.epoch_batch) == (2, 3, 3)


def test_what_was_skipped_is_in_the_state() -> None:
    """`state.stepped`, `state.vetoes` and `state.clock` tell that a step was skipped, and by whom."""
    train(shell := shell_of(model := scalar(), [script(STEP, {0}), recorder("other", [])]), model, 1.0)
    assert dict(shell.state.stepped) == {"main": False}
    assert dict(shell.state.vetoes[STEP]) == {"script": True, "other": False}
    assert (shell.state.clock.skipped, shell.state.clock.consecutive_skips) == (1, 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_optimizers_is_a_no_op(precision: str) -> None:
    """No optimizers is a no-op with any scaler."""
    shell = Shell(model := scalar(3.0), [], MixedPrecision(precision=precision))
    train(shell, model, 1.0)
    assert (model.weight.item(), shell.state.clock.batch) == (3.0, 1)


def test_fewer_schedulers_are_padded() -> None:
    """Fewer schedulers than optimizers are padded with None."""
    models = [scalar(), scalar()]
    optimizers = [SGD(model.parameters(), lr=1.0) for model in models]
    shell = Shell(models, optimizers, Hook(), [StepLR(optimizers[0], 1, 0.5)])
    with shell.batch():
        shell.update(push(models[0], 1.0) + push(models[1], 1.0))
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.5, 1.0]


def test_more_schedulers_are_refused_with_both_counts() -> None:
    """More schedulers than optimizers are refused with both counts (stricter)."""
    optimizer = SGD((model := scalar()).parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"(?s)(2.*1|1.*2)"):
        Shell(model, optimizer, Hook(), [StepLR(optimizer, 1), StepLR(optimizer, 1)])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_optimizer_without_gradients_is_a_no_op(precision: str) -> None:
    """An optimizer without gradients is a no-op in fp32 and fp16, and its scheduler advances."""
    shell, models, optimizers = pair(MixedPrecision(precision=precision))
    train(shell, models["b"], 1.0)
    assert [model.weight.item() for model in models.values()] == [0.0, -1.0]
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.5, 0.5]
    assert all(shell.state.stepped.values())
