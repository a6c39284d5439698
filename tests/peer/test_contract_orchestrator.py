"""The rows "Orchestrator" of the contract that say "the same": both sides, side by side."""

from __future__ import annotations

from typing import Any, Self

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

import functrain
from functrain import Hook, Shell, Stage, fold, named
from tests.contract.toys import scalar
from tests.peer.driver import Orchestrator, PeerRun, TrainingStage, UpdateHook, peer_module
from tests.peer.toys import message_of, peer_of, recorder, shell_of, times, train
from tests.peer.user_hooks import PeerRecorder, PeerScript, mixed_precision

pytestmark = pytest.mark.peer


def test_flattens_and_keeps_the_instances() -> None:
    """Nested compositions flatten into the same instances, an empty one is allowed, on both sides."""
    theirs, ours = [UpdateHook() for _ in range(3)], [named(name, Hook()) for name in "abc"]
    nested = Orchestrator(Orchestrator(theirs[0], theirs[1]), Orchestrator(), theirs[2])
    assert all(a is b for a, b in zip(nested.iter_hooks(), theirs, strict=True))
    assert all(a is b for a, b in zip(fold(fold(ours[0], ours[1]), fold(), ours[2]), ours, strict=True))


@pytest.mark.parametrize("wrong", [3, "ema", lambda: None, UpdateHook])
def test_a_non_hook_is_refused_by_position_and_type(wrong: Any) -> None:
    """Both name position and type; functions are where they differ (lifted)."""
    assert "argument 1" in message_of(TypeError, lambda: Orchestrator(UpdateHook(), wrong))
    if not callable(wrong) or isinstance(wrong, type):
        assert "argument 1" in message_of(TypeError, lambda: fold(Hook(), wrong))


def test_iterables_get_a_hint() -> None:
    """A list given for a hook: both say how to unpack it."""
    assert "TrainingUpdateOrchestrator(*hooks)" in message_of(TypeError, lambda: Orchestrator([UpdateHook()]))
    assert "fold(*hooks)" in message_of(TypeError, lambda: fold([Hook()]))


def test_before_batch_veto_keeps_gradients() -> None:
    """Any veto at BEFORE_BATCH keeps gradients, on both sides."""
    keep = functrain.hook(
        lambda s, _stage, _skip: (s, s.clock.batch != 1, None), name="keep", stages=Stage.BEFORE_BATCH
    )
    for run_of, hook in ((peer_of, PeerScript({"BEFORE_BATCH": {1}})), (shell_of, keep)):
        train(run_of(model := scalar(), hook), model, 1.0, 2.0)
        assert model.weight.item() == -4.0


@pytest.mark.parametrize("side", ["peer", "functrain"])
def test_before_batch_clears_what_no_optimizer_holds(side: str) -> None:
    """Gradients of trainable parameters that no optimizer holds become None too, on both sides."""
    model = nn.ModuleDict({"held": scalar(), "free": scalar()})
    optimizer = SGD(model["held"].parameters(), lr=1.0)
    run = PeerRun({"main": model}, [optimizer], []) if side == "peer" else Shell(model, optimizer, [])
    model["free"].weight.grad = torch.full((1, 1), 9.0)
    train(run, model, 1.0)
    assert model["free"].weight.grad.item() == 1.0


@pytest.mark.parametrize("run_of", [peer_of, shell_of])
def test_a_parameter_without_gradient_is_not_touched(run_of: Any) -> None:
    """A parameter without gradient is not decayed: 1.0 stays 1.0, on both sides."""
    model = nn.ModuleDict({"used": scalar(1.0), "idle": scalar(1.0)})
    train(run_of(model, weight_decay=0.1), model["used"], 0.0)
    assert model["used"].weight.item() == pytest.approx(0.9)
    assert model["idle"].weight.item() == 1.0


def test_do_backward_threads_the_loss() -> None:
    """Each hook sees its predecessor's loss; one backward runs on the last, on both sides."""
    ours = (times(0.5, "half", priority=1), times(4.0, "four"))
    for run_of, hooks in (
        (peer_of, (PeerScript(factor=4.0), PeerScript(factor=0.5, priority=1))),
        (shell_of, ours),
    ):
        train(run_of(model := scalar(), *hooks), model, 1.0)
        assert model.weight.item() == -2.0


def test_do_backward_refuses_none_by_hook_and_stage() -> None:
    """None is refused by hook and stage before any gradient is written, on both sides."""
    mute = functrain.hook(lambda s, _stage, _skip: (s, True, None), name="mute", stages=Stage.DO_BACKWARD)
    for name, run_of, hook in (
        ("PeerRecorder", peer_of, PeerRecorder({"DO_BACKWARD": (True, None)})),
        ("mute", shell_of, mute),
    ):
        run = run_of(model := scalar(), hook)
        said = message_of(TypeError, lambda run=run, model=model: train(run, model, 1.0))
        assert all(part in said for part in (name, "DO_BACKWARD", "None"))
        assert model.weight.grad is None


def test_do_backward_refuses_none_without_hooks() -> None:
    """Without hooks the orchestrator, or the shell, refuses it by stage."""
    assert "DO_BACKWARD; got None" in message_of(TypeError, lambda: peer_of(scalar()).batch(lambda: None))
    shell = shell_of(scalar())
    with shell.batch():
        assert "DO_BACKWARD; got None" in message_of(TypeError, lambda: shell.update(None))


@pytest.mark.parametrize("side", ["peer", "functrain"])
def test_optimizers_step_first_then_schedulers_that_are_due(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a scaler: each optimizer, then each scheduler neither None nor metric-driven, on both sides."""
    model, calls = nn.ModuleDict({name: scalar() for name in "abc"}), []
    optimizers = [SGD(model[name].parameters(), lr=1.0) for name in "abc"]
    for name, optimizer in zip("abc", optimizers, strict=True):
        optimizer.register_step_post_hook(lambda *_args, name=name: calls.append(name))
    schedulers = [LambdaLR(optimizers[0], lambda _: 1.0), None, ReduceLROnPlateau(optimizers[2])]
    peer = side == "peer"
    run = PeerRun({"main": model}, optimizers, [], schedulers) if peer else Shell(model, optimizers, [], schedulers)
    for name, scheduler in (("due", schedulers[0]), ("metric", schedulers[2])):
        monkeypatch.setattr(scheduler, "step", lambda *_args, name=name: calls.append(name))
    train(run, model, 1.0)
    assert calls == ["a", "b", "c", "due"]


@pytest.mark.parametrize("side", ["peer", "functrain"])
@pytest.mark.parametrize("vetoed", [False, True])
@pytest.mark.parametrize("optimizers", [0, 1])
def test_after_step_hooks_hear_whether_it_was_skipped(side: str, vetoed: bool, optimizers: int) -> None:
    """`will_skip` at AFTER_OPTIMIZER_STEP = skipped, with and without optimizers, on both sides."""
    model, log = scalar(), []
    held = [SGD(model.parameters(), lr=1.0)][:optimizers]
    if side == "peer":
        veto = PeerScript({"DO_OPTIMIZER_STEP": {0} if vetoed else ()})
        run = PeerRun({"main": model}, held, [PeerRecorder(log=log), veto])
    else:
        run = Shell(model, held, [recorder(log), recorder([], {"DO_OPTIMIZER_STEP": not vetoed}, name="veto")])
    train(run, model, 1.0)
    assert [entry[2] for entry in log if entry[1] == "AFTER_OPTIMIZER_STEP"] == [vetoed]


def test_peer_hears_no_skip_before_any_step() -> None:
    """Before any step the peer says `will_skip=False`, and nothing counts as skipped here."""
    run = peer_of(scalar(), look := PeerRecorder())
    run.orchestrator(run.context, TrainingStage.AFTER_OPTIMIZER_STEP)
    assert look.log[-1][1:] == ("AFTER_OPTIMIZER_STEP", False)
    shell = shell_of(scalar())
    assert (run.stepped, shell.state.clock.skipped) == (True, 0)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_no_optimizers_is_a_no_op_here(precision: str) -> None:
    """No optimizers: a no-op on both sides in fp32; in fp16 an AssertionError there, a no-op here."""
    run = PeerRun({"main": (model := scalar(1.0))}, [], [mixed_precision(precision)])
    if precision == "fp16":
        with pytest.raises(AssertionError):
            train(run, model, 1.0)
    else:
        train(run, model, 1.0)
    train(Shell(model, [], functrain.MixedPrecision(precision=precision)), model, 1.0)
    assert model.weight.item() == 1.0


@pytest.mark.parametrize("side", ["peer", "functrain"])
def test_an_optimizer_without_gradients_is_a_no_op(side: str) -> None:
    """In fp32 an optimizer without gradients is a no-op whose scheduler advances, on both sides."""
    models = {name: scalar() for name in "ab"}
    optimizers = [SGD(model.parameters(), lr=1.0) for model in models.values()]
    schedulers = [StepLR(optimizer, 1, 0.5) for optimizer in optimizers]
    run = (PeerRun if side == "peer" else Shell)(models, optimizers, [], schedulers)
    train(run, models["b"], 1.0)
    assert [model.weight.item() for model in models.values()] == [0.0, -1.0]
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.5, 0.5]


log: list[Any] = []
"""How hooks lived."""


class Life:
    """Notes how a hook lives."""

    def __enter__(self) -> Self:
        """Note the entry."""
        log.append("enter")
        return self

    def __exit__(self, *details: object) -> bool:
        """Note the exit, and claim to have handled the exception."""
        log.append(details[0])
        return True

    def close(self) -> None:
        """Note the closing."""
        log.append("close")


class TheirLife(Life, UpdateHook):
    """The peer's hook with a life."""


class OurLife(Life, Hook):
    """functrain's hook with a life."""


@pytest.mark.parametrize(
    "build",
    [lambda: Orchestrator(TheirLife()), lambda: shell_of(scalar(), OurLife())],
    ids=["peer", "functrain"],
)
def test_context_managers_live_the_same(build: Any) -> None:
    """Entered, left with the exception, which a True does not suppress; `close()` calls only `close`."""
    log.clear()
    with pytest.raises(KeyError), build():
        raise KeyError
    assert log == ["enter", KeyError]
    build().close()
    assert log == ["enter", KeyError, "close"]


@pytest.mark.parametrize("metric", ["total_loss", "accuracy", lambda summary: summary["accuracy"]])
def test_metric_schedulers_read_the_same_metric(metric: Any) -> None:
    """A callable, a key, or "total_loss" leads both sides to the same learning rates."""
    models = [scalar(), scalar()]
    optimizers = [SGD(model.parameters(), lr=1.0) for model in models]
    theirs, ours = (ReduceLROnPlateau(optimizer, patience=0) for optimizer in optimizers)
    shell = Shell(models[1], optimizers[1], [], [ours])
    for loss, accuracy in ((3.0, 1.0), (2.0, 2.0), (2.5, 3.0)):
        summary = {"total_loss": loss, "accuracy": accuracy}
        peer_module("training.optimizers").step_metric_schedulers([theirs], [metric], summary)
        shell.validated(summary, metric=metric)
        assert optimizers[0].param_groups[0]["lr"] == optimizers[1].param_groups[0]["lr"]
    assert optimizers[0].param_groups[0]["lr"] < 1.0


def test_a_missing_metric_lists_the_sorted_keys() -> None:
    """A missing metric is a KeyError that lists the sorted keys, on both sides."""
    optimizer = SGD((model := scalar()).parameters(), lr=1.0)
    plateau, summary = ReduceLROnPlateau(optimizer), {"b": 1.0, "a": 2.0}
    shell, step = (
        Shell(model, optimizer, [], [plateau]),
        peer_module("training.optimizers").step_metric_schedulers,
    )
    for action in (lambda: step([plateau], [None], summary), lambda: shell.validated(summary)):
        said = message_of(KeyError, action)
        assert "total_loss" in said
        assert "['a', 'b']" in said
