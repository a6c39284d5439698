"""The rows "Mixed precision" of the contract."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch

import functrain
from functrain import Accumulate, ClipNorm, MixedPrecision, Stage, TrainState
from tests.contract.toys import push, scalar, script, shell_of, train, watcher

SPELLINGS = {
    torch.float32: ["float32", "torch.float32", "FP32", "fp32", "float"],
    torch.bfloat16: ["bfloat16", "torch.bfloat16", "BF16", "bf16"],
    torch.float16: ["float16", "torch.float16", "FP16", "fp16", "half", "Half"],
}


def half(**options: Any) -> MixedPrecision:
    """Build a float16 hook with a scale of 4."""
    return MixedPrecision(precision="float16", **{"init_scale": 4.0, **options})


@pytest.mark.parametrize(("dtype", "name"), [(d, name) for d, names in SPELLINGS.items() for name in [d, *names]])
def test_precision_spellings(dtype: torch.dtype, name: Any) -> None:
    """Dtypes and names with or without "torch.", in any case, and the short ones."""
    assert MixedPrecision(precision=name).precision in {dtype, str(dtype).removeprefix("torch.")}
    assert MixedPrecision(precision=name) == MixedPrecision(precision=dtype)


@pytest.mark.parametrize("wrong", ["fp64", torch.float64, "int8", "", 3, None, True])
def test_precision_refuses_others(wrong: Any) -> None:
    """Anything else is a ValidationError that lists the three and says what was given."""
    with pytest.raises(pydantic.ValidationError, match=r"must be one of \(float32, bfloat16, float16\); got") as error:
        MixedPrecision(precision=wrong)
    assert f"got {wrong!r}" in str(error.value)


def test_precision_is_required() -> None:
    """`precision` has no default."""
    with pytest.raises((pydantic.ValidationError, TypeError)):
        MixedPrecision()


def test_exclusive_and_priority_20() -> None:
    """It stands at priority 20, and once."""
    assert MixedPrecision(precision="bf16").priority == 20
    with pytest.raises(ValueError, match=r"MixedPrecision.*MixedPrecision"):
        MixedPrecision(precision="bf16", name="a") + MixedPrecision(precision="fp16", name="b")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_proceeds_and_passes_the_loss_on(precision: str) -> None:
    """Without overflow `proceed` is True at every stage, and the loss passes through unchanged."""
    losses: list[float] = []
    look = watcher(Stage.DO_BACKWARD, lambda state: losses.append(state.loss.item()), priority=60)
    train(shell := shell_of(model := scalar(2.0), [MixedPrecision(precision=precision), look]), model, 1.0)
    assert losses == [2.0]
    assert not any(veto for stage in shell.state.vetoes.values() for veto in stage.values())


def test_vetoes_where_every_optimizer_overflowed() -> None:
    """An overflow everywhere is its veto, which later hooks see."""
    heard: list[bool] = []
    late = functrain.hook(
        lambda s, _stage, skip: (s, heard.append(skip) is None, s.loss),
        name="late",
        stages=Stage.DO_OPTIMIZER_STEP,
    )
    train(shell := shell_of(model := scalar(), [half(), late]), model, float("inf"))
    assert heard == [True]
    assert shell.state.vetoes[Stage.DO_OPTIMIZER_STEP]["precision"] is True


@pytest.mark.parametrize(
    ("precision", "dtype", "scaled"),
    [("fp32", torch.float32, False), ("bf16", torch.bfloat16, False), ("fp16", torch.float16, True)],
)
def test_modes(precision: str, dtype: torch.dtype, scaled: bool) -> None:
    """fp32 is a no-op, bf16 autocasts, fp16 autocasts and scales, without a warning on a CPU."""
    model = scalar(1.0)
    shell = shell_of(model, MixedPrecision(precision=precision, init_scale=4.0))
    with shell.batch():
        output = model(torch.ones(1, 1))
        shell.update(output.float().sum())
    assert output.dtype is dtype
    assert ("scale" in shell.state.scaler) is scaled
    assert model.weight.item() == 0.0


def test_scaler_constants() -> None:
    """Scale 65536, growth 2, backoff .5, interval 2000, as fields."""
    hook = MixedPrecision(precision="fp16")
    assert (hook.init_scale, hook.growth_factor, hook.backoff_factor, hook.growth_interval) == (
        65536.0,
        2.0,
        0.5,
        2000,
    )


def test_scaler_is_visible_to_later_hooks_also_when_vetoed() -> None:
    """Later hooks find the scale in the state at each update stage, in a vetoed batch too."""
    seen: list[float] = []
    stages = functrain.UPDATE_STAGES
    look = functrain.observe("look", lambda state, _stage: seen.append(state.scaler["scale"]), stages=stages)
    train(
        shell_of(model := scalar(), [half(), script(Stage.DO_OPTIMIZER_STEP, {0}, priority=15), look]),
        model,
        1.0,
    )
    assert seen == [4.0] * 4


@pytest.mark.parametrize("vetoes", [(), {0}])
def test_autocast_reaches_from_before_batch_to_do_backward(vetoes: Any) -> None:
    """User code in `shell.batch()` is under autocast, also when zeroing is vetoed; the backward is not."""
    inside: dict[str, bool] = {}
    model = scalar(1.0)
    shell = shell_of(model, [MixedPrecision(precision="bf16"), script(Stage.BEFORE_BATCH, vetoes)])
    with shell.batch():
        inside["forward"] = _autocasts()
        loss = push(model, 1.0)
        loss.register_hook(lambda _gradient: inside.update(backward=_autocasts()))
        shell.update(loss)
        inside["after"] = _autocasts()
    assert inside == {"forward": True, "backward": False, "after": False}


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_inference_autocast_is_for_validation(precision: str, dtype: torch.dtype) -> None:
    """`inference_autocast(device)` opens the same autocast for a validation pass."""
    with MixedPrecision(precision=precision).inference_autocast(torch.device("cpu")):
        assert scalar()(torch.ones(1, 1)).dtype is dtype


def test_fit_runs_other_hooks_outside_autocast() -> None:
    """`fit` runs forward and loss under autocast, and hooks outside of it (lifted)."""
    hooks, loss = [], []
    note = functrain.observe("note", lambda _state, _stage: hooks.append(_autocasts()), stages=list(Stage))
    shell = shell_of(scalar(1.0), [MixedPrecision(precision="bf16"), note])
    loss_fn = lambda model, x: (loss.append(_autocasts()), model(x).float().sum())[1]  # noqa: E731
    functrain.fit(shell, [torch.ones(1, 1)], loss_fn, epochs=1, progress=False)
    assert loss == [True]
    assert hooks
    assert not any(hooks)


def _autocasts() -> bool:
    """Tell whether autocast is on."""
    return torch.is_autocast_enabled("cpu")


def test_scaling_comes_after_all_hooks() -> None:
    """The interpreter scales last: a hook of priority 50 sees and changes an unscaled loss (lifted)."""
    add = functrain.hook(
        lambda s, _stage, _skip: (s, True, s.loss + 3.0 * s.params["main"]["weight"].sum()),
        name="add",
        stages=Stage.DO_BACKWARD,
    )
    train(shell := shell_of(model := scalar(), [MixedPrecision(precision="fp16"), add]), model, 1.0)
    assert model.weight.item() == -4.0
    assert shell.state.raw_loss.item() == shell.state.loss.item() == 0.0


def test_an_accumulation_veto_is_no_scaler_event() -> None:
    """Waiting in a window leaves gradients scaled, scale and growth as they are."""
    shell = shell_of(model := scalar(), [half(), Accumulate(every=2)])
    train(shell, model, 2.0)
    assert model.weight.grad.item() == 4.0
    assert (shell.state.scaler["scale"], shell.state.scaler["growth_tracker"]) == (4.0, 0)
    train(shell, model, 3.0)
    assert model.weight.item() == -2.5
    assert shell.state.scaler["growth_tracker"] == 1


@pytest.mark.parametrize(("gradient", "scale"), [(1.0, 4.0), (float("inf"), 2.0)])
def test_a_later_veto_closes_the_transaction(gradient: float, scale: float) -> None:
    """After a veto of priority 40 the scaler is ready: finite leaves it, non-finite backs off (lifted)."""
    shell = shell_of(model := scalar(), [half(), script(Stage.DO_OPTIMIZER_STEP, {0})])
    train(shell, model, gradient)
    assert (shell.state.scaler["scale"], shell.state.scaler["growth_tracker"]) == (scale, 0)
    train(shell, model, 1.0)
    assert model.weight.item() == -1.0


def test_gradients_are_unscaled_from_before_optimizer_step_on() -> None:
    """Observers see unscaled gradients from BEFORE_OPTIMIZER_STEP on (lifted)."""
    seen: dict[Stage, float] = {}

    def note(state: TrainState, stage: Stage) -> None:
        seen[stage] = state.grads["main"]["weight"].item()

    stages = [Stage.BEFORE_OPTIMIZER_STEP, Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP]
    hooks = [half(), ClipNorm(max_norm=100.0), functrain.observe("note", note, stages=stages)]
    train(shell_of(model := scalar(), hooks), model, 3.0)
    assert seen == dict.fromkeys(stages, 3.0)
