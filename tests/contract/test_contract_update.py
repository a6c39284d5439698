"""The rows "Update hook" of the contract."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch

import functrain
from functrain import (
    GATED_STAGES,
    UPDATE_STAGES,
    Accumulate,
    Hook,
    MixedPrecision,
    Stage,
    TrainState,
    fold,
)
from tests.contract.toys import Call, push, recorder, scalar, script, shell_of, train, watcher

UNGATED = [stage for stage in Stage if stage not in GATED_STAGES]
Verdict = tuple[TrainState, Any, Any]


def test_priority_is_50_by_default_and_frozen() -> None:
    """`priority` is 50 by default and a field of a frozen hook."""
    assert Hook().priority == 50
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        Hook().priority = 10


def test_priority_lower_runs_first_and_ties_keep_their_order() -> None:
    """Lower priorities run first, equal ones in insertion order."""
    members = [recorder(f"h{i}", [], priority=p) for i, p in enumerate([50, 10, 50, 30, 10])]
    assert [each.name for each in fold(*members)] == ["h1", "h4", "h3", "h0", "h2"]


def test_signature_maps_a_state_and_changes_nothing() -> None:
    """`hook(state, stage, will_skip)` gives `(state, proceed, loss)` and leaves its input alone."""
    before = TrainState(hooks={"tally": 0})
    tally = functrain.hook(
        lambda s, _stage, _skip: (s.with_slot("tally", s.hooks["tally"] + 1), True, s.loss), name="t"
    )
    after, proceed, loss = tally(before, Stage.DO_BACKWARD, False)
    assert (before.hooks["tally"], after.hooks["tally"], proceed) == (0, 1, True)
    assert loss is before.loss


def state_at_the_step(hooks: list[Hook]) -> TrainState:
    """Train one batch, whose loss is 6, and return the state that a hook saw at its step."""
    seen: list[TrainState] = []
    shell = shell_of(model := scalar(2.0), [watcher(Stage.DO_OPTIMIZER_STEP, seen.append), *hooks])
    with shell.batch({"x": 7}):
        shell.update(push(model, 3.0))
    return seen[0]


def test_state_gives_what_is_trained() -> None:
    """Batch, parameters, buffers, learning rates, losses and scaler are in the state."""
    state = state_at_the_step([MixedPrecision(precision="fp16")])
    assert state.batch["x"] == 7
    assert list(state.params["main"]) == ["weight"]
    assert not state.buffers["main"]
    assert _first_group(state)["lr"] == 1.0
    assert (state.loss.item(), state.raw_loss.item()) == (6.0, 6.0)
    assert state.scaler["scale"] == 65536.0


def test_state_gives_where_the_run_is() -> None:
    """Counters, rank, world and the latest validation are in the state; there is no workflow."""
    state = state_at_the_step([])
    assert (state.clock.step, state.clock.batch, state.clock.epoch, state.clock.epoch_batch) == (0, 0, 0, 0)
    assert (state.rank, state.world, len(state.validation)) == (0, 1, 0)
    assert not hasattr(state, "workflow")


def _first_group(state: TrainState) -> Any:
    """Return the hyper-parameters of the first group of the only optimizer."""
    return next(iter(state.hyper["main"].values()))


def test_state_gives_named_loss_components_as_metrics() -> None:
    """Named loss components go to `metrics`."""
    seen: list[TrainState] = []
    model = scalar(2.0)
    shell = shell_of(model, watcher(Stage.AFTER_OPTIMIZER_STEP, seen.append))
    with shell.batch():
        shell.update(push(model, 3.0), losses={"energy": torch.tensor(1.5)})
    assert seen[0].metrics["energy"].item() == 1.5
    assert shell.state.metrics["energy"].item() == 1.5


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("will_skip", [False, True])
def test_default_body_is_the_identity_at_every_stage(stage: Stage, will_skip: bool) -> None:
    """The base hook returns the same state, True and the very loss object at all 18 stages."""
    state = TrainState()
    after, proceed, loss = Hook(stages=frozenset(Stage))(state, stage, will_skip)
    assert after is state
    assert proceed is True
    assert loss is state.loss


def test_stages_are_the_four_by_default_and_init_stands_for_setup() -> None:
    """`stages` defaults to the four update stages; `init` runs at SETUP, which need not be claimed."""
    log: list[Call] = []
    shell = shell_of(model := scalar(), recorder("h", log, init=lambda _state: {"built": 1}))
    assert shell.state.hooks["h"]["built"] == 1
    train(shell, model, 1.0)
    assert {stage for _, stage, _ in log} == UPDATE_STAGES


def test_stages_may_be_any_of_the_18() -> None:
    """A hook that claims all 18 stages is called at all of them (lifted)."""
    log: list[Call] = []
    shell = shell_of(scalar(), recorder("h", log, stages=frozenset(Stage)))
    loss_fn = lambda module, x: module(x).square().mean()  # noqa: E731
    functrain.fit(shell, [torch.ones(1, 1)], loss_fn, epochs=1, validate=lambda _module: 1.0, progress=False)
    assert {stage for _, stage, _ in log} == set(Stage)


@pytest.mark.parametrize("stage", sorted(GATED_STAGES, key=lambda stage: stage.name))
@pytest.mark.parametrize("bad", [None, 1, "yes", torch.ones(2, dtype=torch.bool), torch.tensor(1)])
def test_proceed_is_strict_at_gated_stages(stage: Stage, bad: object) -> None:
    """A bad `proceed` raises at once with hook, stage, type and remedy; later hooks are not called."""
    log: list[Call] = []
    shell = shell_of(model := scalar(), [recorder("odd", [], {stage: bad}), recorder("later", log)])
    with pytest.raises(TypeError, match=rf"odd.*{stage.name}.*{type(bad).__name__}.*Return True .*or False") as error:
        train(shell, model, 1.0)
    assert "Return True to proceed or False to skip." in str(error.value)
    assert stage not in {called for _, called, _ in log}


@pytest.mark.parametrize("stage", sorted(GATED_STAGES, key=lambda stage: stage.name))
def test_proceed_that_is_bad_zeroes_and_steps_nothing(stage: Stage) -> None:
    """After a bad `proceed` nothing was stepped, and at BEFORE_BATCH nothing zeroed."""
    model = scalar(5.0)
    shell = shell_of(model, recorder("odd", [], {stage: None}))
    model.weight.grad = torch.full((1, 1), 9.0)
    with pytest.raises(TypeError):
        train(shell, model, 1.0)
    assert model.weight.item() == 5.0
    assert stage is not Stage.BEFORE_BATCH or model.weight.grad.item() == 9.0


@pytest.mark.parametrize("answer", [False, None])
def test_proceed_is_not_read_at_ungated_stages(answer: object) -> None:
    """False or None at an ungated stage is no error and changes no later hook's `will_skip`."""
    log: list[Call] = []
    members = [
        recorder("odd", [], dict.fromkeys(UNGATED, answer), stages=UNGATED),
        recorder("later", log, stages=UNGATED),
    ]
    train(shell := shell_of(model := scalar(), members), model, 1.0)
    assert (model.weight.item(), shell.state.clock.step) == (-1.0, 1)
    assert {stage for _, stage, _ in log} >= {Stage.SETUP, Stage.AFTER_OPTIMIZER_STEP}
    assert not any(will_skip for _, _, will_skip in log)


def test_do_backward_false_drops_and_later_hooks_see_it() -> None:
    """False at DO_BACKWARD drops the micro-batch; later hooks see it and still run (lifted)."""
    log: list[Call] = []
    hooks = [
        Accumulate(every=2),
        script(Stage.DO_BACKWARD, {0}),
        recorder("later", log, stages=Stage.DO_BACKWARD),
    ]
    train(shell_of(model := scalar(), hooks), model, 100.0, 3.0)
    assert model.weight.item() == -3.0
    assert log == [("later", Stage.DO_BACKWARD, True), ("later", Stage.DO_BACKWARD, False)]


def test_do_backward_without_a_false_calls_every_hook_with_will_skip_false() -> None:
    """With no False, every hook gets `will_skip=False` at DO_BACKWARD."""
    log: list[Call] = []
    train(shell_of(model := scalar(), [recorder(n, log, stages=Stage.DO_BACKWARD) for n in "abc"]), model, 1.0)
    assert log == [(name, Stage.DO_BACKWARD, False) for name in "abc"]


def test_loss_may_be_none_outside_do_backward() -> None:
    """A hook may return None for the loss anywhere but at DO_BACKWARD."""

    def silent(state: TrainState, stage: Stage, will_skip: bool) -> Verdict:
        return state, True, state.loss if stage is Stage.DO_BACKWARD else None

    train(shell_of(model := scalar(), silent), model, 2.0)
    assert model.weight.item() == -2.0
