"""Combinations that could not train: refused when the shell is built, with the reason, not at step 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import StepLR

from functrain import (
    EMA,
    ClipNorm,
    ClipValue,
    Hook,
    MixedPrecision,
    Shell,
)
from tests.scalars import Weight, sgd_shell


def refusal(kind: type[Exception], *args: Any, **options: Any) -> str:
    """Return the message with which a shell refuses to be built."""
    with pytest.raises(kind) as caught:
        Shell(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_one_parameter_in_two_optimizers(precision: str) -> None:
    """It would be stepped twice per step, and unscaled twice: both optimizers and the path are named."""
    model = Weight()
    optimizers = {"a": SGD(model.parameters(), lr=1.0), "b": SGD(model.parameters(), lr=1.0)}
    found = refusal(ValueError, model, optimizers, MixedPrecision(precision=precision))
    assert found.startswith("optimizers 'a' and 'b' both hold state.params[\"main\"][\"w\"]; it would be updated twice")
    assert found.endswith("give it to one of them")


def test_a_parameter_that_belongs_to_no_model() -> None:
    """Hooks could not see it: optimizer, shape and the models there are."""
    stray = nn.Parameter(torch.zeros(2, 3))
    found = refusal(ValueError, Weight(), SGD([stray], lr=1.0), ClipNorm(max_norm=1.0))
    assert "optimizer 'main' holds a parameter of shape (2, 3) that belongs to none of the models ['main']" in found


@pytest.mark.parametrize("scaler", [None, "scaler"])
def test_parameters_in_float16_with_a_scaler(scaler: Any) -> None:
    """Refused at SETUP, not at step 1, whether the user brings a scaler or the hook makes its own."""
    model = Weight(dtype=torch.float16)
    given = torch.amp.GradScaler("cpu") if scaler else None
    found = refusal(ValueError, model, SGD(model.parameters(), lr=1.0), MixedPrecision(precision="fp16"), scaler=given)
    assert found.startswith('state.params["main"]["w"] is float16: a scaled gradient could not be unscaled in it')
    assert "keep parameters in float32" in found


@pytest.mark.parametrize("hooks", [[], [MixedPrecision(precision="bf16")], [MixedPrecision(precision="fp32")]])
def test_a_scaler_that_nobody_uses(hooks: list[Hook]) -> None:
    """Without float16 in the pipeline nobody would scale the loss; a disabled scaler is no scaler."""
    model = Weight()
    optimizer = SGD(model.parameters(), lr=1.0)
    found = refusal(ValueError, model, optimizer, hooks, scaler=torch.amp.GradScaler("cpu"))
    have = f"MixedPrecision(precision={hooks[0].precision})" if hooks else "no MixedPrecision"  # pyright: ignore[reportAttributeAccessIssue]
    assert found.startswith(f"a GradScaler with {have} in the pipeline: nobody would scale the loss")
    assert 'MixedPrecision(precision="float16")' in found
    Shell(model, optimizer, hooks, scaler=torch.amp.GradScaler("cpu", enabled=False))


def test_a_scaler_that_is_none() -> None:
    """Something else with a step and an update is a TypeError with its type."""
    model = Weight()
    found = refusal(
        TypeError, model, SGD(model.parameters(), lr=1.0), MixedPrecision(precision="fp16"), scaler=object()
    )
    assert found == "scaler must be a torch.amp.GradScaler, got object"


def test_several_types_of_device_in_float16() -> None:
    """One loss scale and one autocast serve one type of device."""
    models = {"here": nn.Linear(1, 1), "there": nn.Linear(1, 1, device="meta")}
    optimizers = {key: SGD(each.parameters(), lr=1.0) for key, each in models.items()}
    found = refusal(ValueError, models, optimizers, MixedPrecision(precision="fp16"))
    assert found.startswith("parameters on cpu and meta: one loss scale and one autocast serve one type of device")


def test_an_optimizer_that_calls_the_model_itself() -> None:
    """LBFGS is refused with the reason before it has done anything."""
    model = Weight()
    found = refusal(ValueError, model, LBFGS(model.parameters()), ClipNorm(max_norm=1.0))
    assert found == "optimizer 'main' is LBFGS, which calls the model several times per step; a hook cannot veto that"


def test_complex_gradients_cannot_be_clamped() -> None:
    """Complex numbers have no order; the message names the parameter and the hook that can."""
    model = Weight(1.0, dtype=torch.complex64)
    found = refusal(ValueError, model, SGD(model.parameters(), lr=1.0), ClipValue(clip_value=1.0))
    assert found.startswith('\'clip_value\' cannot clamp complex gradients: state.params["main"]["w"] is complex')
    assert "ClipNorm" in found


def test_an_unknown_model() -> None:
    """A KeyError with the key and the sorted models there are."""
    models = {"b": Weight(), "a": Weight()}
    found = refusal(KeyError, models, SGD(models["a"].parameters(), lr=1.0), EMA(model_key="teacher"))
    assert "'ema_teacher' could not find model_key='teacher'; the models are ['a', 'b']" in found


def test_schedulers_that_fit_no_optimizer() -> None:
    """Unknown keys, too many, and those that drive another optimizer are refused."""
    models = {"a": Weight(), "b": Weight()}
    optimizers = {key: SGD(each.parameters(), lr=1.0) for key, each in models.items()}
    made = {key: StepLR(each, 1) for key, each in optimizers.items()}
    found = refusal(KeyError, models, optimizers, [], {"c": made["a"]})
    assert "schedulers for ['c'], but the optimizers are ['a', 'b']" in found
    found = refusal(ValueError, models, optimizers, [], [made["a"], made["b"], None])
    assert found == "3 schedulers for 2 optimizers; give one, or None, per optimizer"
    found = refusal(ValueError, models, optimizers, [], {"a": made["b"]})
    assert found.startswith("the scheduler of optimizer 'a' drives optimizer 'b'; align schedulers with optimizers")


@pytest.mark.parametrize(
    ("models", "optimizers", "message"),
    [
        (3, [], "models must be one Module, a sequence or a mapping of them, got int"),
        (Weight(), 3, "optimizers must be one Optimizer, a sequence or a mapping of them, got int"),
        ([Weight(), 3], [], r"models\['1'\] must be a Module, got int"),
        (Weight(), {"a": "sgd"}, r"optimizers\['a'\] must be a Optimizer, got str"),
    ],
)
def test_what_is_no_model_and_no_optimizer(models: Any, optimizers: Any, message: str) -> None:
    """Type and place are named."""
    with pytest.raises(TypeError, match=message):
        Shell(models, optimizers, [])


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (EMA, r"got the class EMA; did you mean EMA\(\)\?"),
        ([EMA(), ClipNorm], "argument 1 of fold must be a hook or a function, got the class ClipNorm"),
        ([[EMA()]], r"argument 0 of fold .* got a list; write fold\(\*hooks\)"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_hook(hooks: Any, message: str) -> None:
    """A shell refuses what fold refuses."""
    with pytest.raises(TypeError, match=message):
        sgd_shell(Weight(), hooks)
