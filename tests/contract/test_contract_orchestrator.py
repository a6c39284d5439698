"""The rows "Orchestrator" of the contract: composing, and what the interpreter does at each stage."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch
from torch import nn

import functrain
from functrain import EMA, Accumulate, ClipNorm, Hook, Shell, Stage, TrainState, every, fold, named
from tests.contract.toys import push, scalar, script, shell_of, train


def test_flattens_nested_pipelines_and_keeps_the_instances() -> None:
    """Nested pipelines flatten into their own members, in dispatch order."""
    a, b, c = Accumulate(every=2), ClipNorm(max_norm=1.0), EMA()
    members = list(fold(fold(c, fold(b)), fold(), a))
    assert len(members) == 3
    assert all(found is given for found, given in zip(members, (a, b, c), strict=True))


def test_empty_is_allowed_and_is_the_identity() -> None:
    """The empty pipeline composes, iterates, and trains like a plain loop."""
    assert list(fold()) == []
    train(shell_of(model := scalar(), fold()), model, 2.0)
    assert model.weight.item() == -2.0


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [(3, "int"), ([EMA()], r"fold\(\*hooks\)"), (EMA, r"did you mean EMA\(\)\?"), ("ema", "str")],
)
def test_a_non_hook_is_a_type_error_with_position_type_and_hint(wrong: object, hint: str) -> None:
    """What is no hook is refused by position and type, with a hint for iterables and classes."""
    with pytest.raises(TypeError, match=rf"argument 1 .*{hint}"):
        fold(EMA(), wrong)


def test_functions_are_accepted() -> None:
    """A bare function is a hook under its own name (lifted)."""

    def halve(state: TrainState, stage: Stage, will_skip: bool) -> tuple[TrainState, bool, torch.Tensor]:
        return state, True, state.loss / 2 if stage is Stage.DO_BACKWARD else state.loss

    assert [each.name for each in fold(halve)] == ["halve"]
    train(shell_of(model := scalar(), halve), model, 4.0)
    assert model.weight.item() == -2.0


@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: [p]])
def test_shell_keeps_a_lone_pipeline(wrap: Any) -> None:
    """`shell.pipeline is p` for a lone pipeline, given as it is or in a list."""
    pipeline = EMA() + ClipNorm(max_norm=1.0)
    assert shell_of(scalar(), wrap(pipeline)).pipeline is pipeline


def test_shell_takes_a_hook_a_pipeline_or_a_list_of_both() -> None:
    """`Shell(hooks=...)` takes one hook, or a list in which several pipelines simply fold (lifted)."""
    assert [each.name for each in shell_of(scalar(), EMA()).pipeline] == ["ema"]
    mixed = [named("plain", Hook()), EMA() + ClipNorm(max_norm=1.0), fold(Accumulate(every=2))]
    assert [each.name for each in shell_of(scalar(), mixed).pipeline] == [
        "accumulate",
        "clip",
        "plain",
        "ema",
    ]
    assert list(shell_of(scalar(), []).pipeline) == []


def test_observers_run_before_the_act_and_the_next_stage_sees_it() -> None:
    """At DO_OPTIMIZER_STEP an observer sees the old weights, at AFTER_OPTIMIZER_STEP the new ones."""
    seen: dict[Stage, float] = {}
    stages = (Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP)
    note = lambda state, stage: seen.update({stage: state.params["main"]["weight"].item()})  # noqa: E731
    train(shell_of(model := scalar(), functrain.observe("note", note, stages=stages)), model, 1.0)
    assert seen == {Stage.DO_OPTIMIZER_STEP: 0.0, Stage.AFTER_OPTIMIZER_STEP: -1.0}


def test_registering_later_is_building_another_shell() -> None:
    """There is no later registration: build a shell with `shell.pipeline + h`."""
    first = shell_of(model := scalar(), ClipNorm(max_norm=1.0))
    second = shell_of(model, first.pipeline + Accumulate(every=2))
    assert [each.name for each in second.pipeline] == ["accumulate", "clip"]
    assert not hasattr(first, "register_hook")


@pytest.mark.parametrize("n", [0, -1, True, 1.5])
def test_every_refuses_less_than_one(n: Any) -> None:
    """`every(n, hook)` refuses n < 1 and what is no int."""
    with pytest.raises(pydantic.ValidationError):
        every(n, EMA())


def test_only_the_interpreter_acts() -> None:
    """Folding a pipeline by hand over a shell's state, at the stages that act, moves no weight."""
    shell = shell_of(model := scalar(3.0), ClipNorm(max_norm=1.0))
    model.weight.grad = torch.ones(1, 1)
    for stage in (Stage.BEFORE_BATCH, Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP):
        shell.pipeline(shell.state, stage, False)
    assert (model.weight.item(), model.weight.grad.item()) == (3.0, 1.0)


def test_before_batch_veto_keeps_gradients() -> None:
    """Any veto at BEFORE_BATCH keeps the gradients, which the next backward adds to."""
    train(shell_of(model := scalar(), script(Stage.BEFORE_BATCH, {1})), model, 1.0, 2.0)
    assert model.weight.item() == -1.0 - 3.0


def test_before_batch_zeroes_to_none_also_what_no_optimizer_holds() -> None:
    """Without a veto gradients become None, those of trainable parameters that no optimizer holds too."""
    model = nn.ModuleDict({"held": scalar(), "free": scalar()})
    shell = Shell(model, torch.optim.SGD(model["held"].parameters(), lr=1.0), Hook())
    for parameter in model.parameters():
        parameter.grad = torch.ones(1, 1)
    with shell.batch():
        assert [parameter.grad for parameter in model.parameters()] == [None, None]
        shell.update(push(model, 1.0))
    assert model["free"].weight.item() == 0.0


def test_a_parameter_without_gradient_is_not_touched() -> None:
    """A parameter without gradient in a window is not decayed: it stays 1.0."""
    model = nn.ModuleDict({"used": scalar(1.0), "idle": scalar(1.0)})
    train(shell_of(model, Hook(), weight_decay=0.1), model["used"], 0.0)
    assert model["used"].weight.item() == pytest.approx(0.9)
    assert model["idle"].weight.item() == 1.0


def test_do_backward_threads_the_loss_and_runs_one_backward() -> None:
    """Each hook sees its predecessor's loss, and there is one backward on the last one."""
    double, add = (
        functrain.hook(lambda s, _stage, _skip: (s, True, s.loss * 2), name="double", stages=Stage.DO_BACKWARD),
        functrain.hook(lambda s, _stage, _skip: (s, True, s.loss + s.loss), name="add", stages=Stage.DO_BACKWARD),
    )
    backwards: list[float] = []
    shell = shell_of(model := scalar(), [double, add])
    with shell.batch():
        loss = push(model, 1.0)
        loss.register_hook(lambda gradient: backwards.append(gradient.item()))
        shell.update(loss)
    assert (model.weight.item(), backwards) == (-4.0, [4.0])


def test_do_backward_refuses_none_before_any_gradient() -> None:
    """None at DO_BACKWARD is refused by hook and stage, and no gradient has been written."""
    mute = functrain.hook(lambda s, _stage, _skip: (s, True, None), name="mute", stages=Stage.DO_BACKWARD)
    shell = shell_of(model := scalar(), mute)
    with pytest.raises(TypeError, match=r"mute.*DO_BACKWARD.*None"):
        train(shell, model, 1.0)
    assert model.weight.grad is None


def test_do_backward_refuses_none_without_hooks() -> None:
    """Without hooks it is the shell that refuses a missing loss, by stage."""
    shell = shell_of(scalar(), fold())
    with pytest.raises(TypeError, match=r"DO_BACKWARD.*None"), shell.batch():
        shell.update(None)


WITH_GRAPH = [Stage.AFTER_LOSS, Stage.BEFORE_BACKWARD, Stage.DO_BACKWARD]
WITHOUT_GRAPH = [Stage.AFTER_BACKWARD, Stage.BEFORE_OPTIMIZER_STEP, Stage.DO_OPTIMIZER_STEP, Stage.AFTER_BATCH]


def test_losses_carry_a_graph_until_the_backward() -> None:
    """`loss` and `raw_loss` carry a graph up to DO_BACKWARD; after it both are visible, detached (lifted)."""
    seen: dict[Stage, list[tuple[bool, float]]] = {}
    note = lambda s, stage: seen.update({stage: [(x.requires_grad, x.item()) for x in (s.loss, s.raw_loss)]})  # noqa: E731
    double = functrain.hook(lambda s, _stage, _skip: (s, True, s.loss * 2), name="double", stages=Stage.DO_BACKWARD)
    look = functrain.observe("look", note, stages=WITH_GRAPH + WITHOUT_GRAPH, priority=40)
    loss_fn = lambda model, times: model.weight.sum() * times  # noqa: E731
    functrain.fit(shell_of(scalar(3.0), [look, double]), [1.0], loss_fn, epochs=1, progress=False)
    assert [seen[stage] for stage in WITH_GRAPH] == [[(True, 3.0), (True, 3.0)]] * 3
    assert [seen[stage] for stage in WITHOUT_GRAPH] == [[(False, 6.0), (False, 3.0)]] * 4
