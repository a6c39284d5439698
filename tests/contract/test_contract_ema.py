"""The rows "EMA" of the contract: configuration, eligibility, the rule, and what is averaged."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

import functrain
from functrain import EMA, UPDATE_STAGES, Accumulate, Hook, MixedPrecision, Shell, Stage
from tests.contract.toys import scalar, script, shell_of, train


def averaged(shell: Shell, name: str = "ema") -> float:
    """Return the averaged weight of a model of one weight."""
    return shell.averaged_module(name).weight.item()


def test_fields_and_defaults() -> None:
    """The six fields have the peer's names and defaults."""
    hook = EMA()
    assert (hook.model_key, hook.decay, hook.update_every, hook.start_step) == ("main", 0.999, 1, 0)
    assert (hook.use_buffers, hook.num_updates, hook.priority) == (True, 0, 50)
    assert EMA(model_key=" teacher ").model_key == "teacher"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"decay": bad} for bad in (1.0, -0.1, float("nan"), True, "0.5")),
        *({"update_every": bad} for bad in (0, -1, 1.5, True, "3")),
        *({"start_step": bad} for bad in (-1, True, "3")),
        *({"num_updates": bad} for bad in (-1, True, "3")),
        *({"model_key": bad} for bad in ("", "  ", 3)),
        *({"use_buffers": bad} for bad in (1, "yes")),
        {"shadow": "cpu"},
    ],
)
def test_fields_refuse_what_is_out_of_bounds(wrong: dict[str, Any]) -> None:
    """Out of bounds, NaN, unknown, and (stricter) bools and strings for numbers are ValidationErrors."""
    with pytest.raises(pydantic.ValidationError):
        EMA(**wrong)


@pytest.mark.parametrize("stage", sorted(UPDATE_STAGES, key=lambda stage: stage.name))
def test_proceeds_and_passes_the_loss_on(stage: Stage) -> None:
    """At every stage `proceed` is True and the loss is the very object."""
    train(shell := shell_of(model := scalar(), EMA()), model, 1.0)
    _, proceed, loss = shell.pipeline["ema"](shell.state, stage, False)
    assert proceed is True
    assert loss is shell.state.loss


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_never_touches_training_and_works_under_autocast(precision: str) -> None:
    """With and without EMA weights, gradients, momentum, learning rate and scale are bitwise the same."""
    assert _trained([MixedPrecision(precision=precision)]) == _trained(
        [MixedPrecision(precision=precision), EMA(decay=0.5)]
    )


def _trained(hooks: list[Hook]) -> tuple[object, object]:
    """Train with momentum for three steps, and return all that the optimizer and the scaler hold."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    shell = Shell(model, optimizer, hooks)
    for _ in range(3):
        with shell.batch():
            shell.update(model(torch.ones(4, 2)).float().square().mean())
    held = [(p, p.grad, optimizer.state[p]["momentum_buffer"]) for p in model.parameters()]
    return [[tensor.tolist() for tensor in each] for each in held], dict(shell.state.scaler)


def test_the_copy_is_built_at_setup_without_counting_an_update() -> None:
    """`init` copies the weights into storage of its own, and counts nothing."""
    shell = shell_of(model := scalar(4.0), EMA(num_updates=3))
    slot = shell.state.hooks["ema"]
    assert (slot["n_averaged"], slot["num_updates"], slot["shadow"]["weight"].item()) == (0, 3, 4.0)
    assert slot["shadow"]["weight"].data_ptr() != model.weight.data_ptr()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"update_every": 4}, [4, 8]),
        ({"start_step": 5}, [5, 6, 7, 8]),
        ({"start_step": 5, "update_every": 2}, [6, 8]),
        ({"start_step": 0, "update_every": 9}, []),
    ],
)
def test_eligible_from_start_step_on_every_so_often(settings: dict[str, int], expected: list[int]) -> None:
    """Updates happen at completed steps >= start_step that are multiples of update_every."""
    assert _updates(EMA(**settings), steps=8) == expected


def _updates(hook: EMA, *, steps: int) -> list[int]:
    """Return the completed steps at which the counter of a hook went up."""
    shell = shell_of(model := scalar(), hook)
    counts = [0]
    for _ in range(steps):
        train(shell, model, 1.0)
        counts.append(shell.state.hooks["ema"]["num_updates"])
    return [step for step in range(1, steps + 1) if counts[step] > counts[step - 1]]


def test_eligible_only_if_not_skipped() -> None:
    """A skipped step does not update, and waiting in a window does not either."""
    hooks = [EMA(decay=0.5), Accumulate(every=2), script(Stage.DO_OPTIMIZER_STEP, {3})]
    train(shell := shell_of(model := scalar(), hooks), model, *[1.0] * 6)
    assert shell.state.hooks["ema"]["num_updates"] == 2
    assert averaged(shell) == -1.5


def test_the_first_update_copies_whatever_num_updates_says() -> None:
    """`n_averaged` 0 copies; `num_updates` only counts, from whatever it starts."""
    shell = shell_of(model := scalar(), EMA(decay=0.5, num_updates=7))
    train(shell, model, 1.0)
    assert averaged(shell) == -1.0
    assert (shell.state.hooks["ema"]["n_averaged"], shell.state.hooks["ema"]["num_updates"]) == (1, 8)
    train(shell, model, 1.0)
    assert averaged(shell) == -1.5


@given(decay=st.floats(0.0, 1.0, exclude_max=True))
def test_the_weight_is_the_double_one_minus_decay(decay: float) -> None:
    """The lerp's weight is the Python double `1 - decay`, for every decay."""
    train(shell := shell_of(model := scalar(0.1), EMA(decay=decay)), model, 0.3, 0.7)
    first, second = torch.tensor(0.1) - 0.3, torch.tensor(0.1) - 0.3 - 0.7
    assert averaged(shell) == torch.lerp(first, second, 1 - decay).item()


def test_a_decay_changed_in_the_slot_takes_effect() -> None:
    """The decay lives in the slot, and a change there takes effect at the next update (lifted)."""
    relax = functrain.hook(
        lambda s, _stage, _skip: (s.with_slot("ema", s.hooks["ema"] | {"decay": 0.25}), True, s.loss),
        name="relax",
        priority=45,
        writes={"hooks"},
        stages=Stage.DO_OPTIMIZER_STEP,
    )
    train(shell := shell_of(model := scalar(), [EMA(decay=0.5), relax]), model, 1.0, 1.0)
    assert averaged(shell) == -1.75


class Stats(nn.Module):
    """One weight, a float and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(("use_buffers", "mean"), [(False, 20.0), (True, 10.0)])
def test_buffers(use_buffers: bool, mean: float) -> None:
    """Float buffers are averaged with `use_buffers`, else copied; integer ones always copied (lifted)."""
    shell = shell_of(model := Stats(), EMA(decay=0.5, use_buffers=use_buffers))
    for value in (0, 20):
        model.mean.fill_(value)
        model.count.fill_(value)
        train(shell, model, 1.0)
    module = shell.averaged_module("ema")
    assert (module.mean.item(), module.count.item()) == (mean, 20)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_shadow_of_low_precision_is_float32(dtype: torch.dtype) -> None:
    """Over bf16 and fp16 the shadow is fp32, so a small step does not stall (lifted)."""
    shell = shell_of(model := scalar().to(dtype), EMA(decay=0.9))
    train(shell, model, 0.0, -1.0)
    assert shell.state.hooks["ema"]["shadow"]["weight"].dtype is torch.float32
    assert shell.state.hooks["ema"]["shadow"]["weight"].item() == pytest.approx(0.1, abs=1e-7)


def test_later_casts_of_the_source_are_followed() -> None:
    """After the source was cast, averaging goes on, and what is handed out has the new dtype (lifted)."""
    train(shell := shell_of(model := scalar(), EMA(decay=0.5)), model, 1.0)
    model.to(torch.bfloat16)
    train(shell, model, 1.0)
    module = shell.averaged_module("ema")
    assert (module.weight.dtype, module.weight.item()) == (torch.bfloat16, -1.5)


class Mixed(nn.Module):
    """A frozen, a complex, and a tied parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.wave = nn.Parameter(torch.zeros(1, dtype=torch.complex64))
        self.first = nn.Parameter(torch.zeros(1))
        self.second = self.first


def test_all_parameters_are_averaged() -> None:
    """Frozen and complex parameters are averaged too, tied ones once."""
    shell = shell_of(model := Mixed(), EMA(decay=0.5))
    for value in (0, 2):
        model.frozen.fill_(value)
        with shell.batch():
            shell.update(model.first.sum() + (model.wave * 2).sum().real)
    module = shell.averaged_module("ema")
    assert (module.frozen.item(), module.wave.item(), module.first.item()) == (1.0, -3.0, -1.5)
    assert module.second is module.first


def test_an_unknown_model_key_is_refused_at_setup() -> None:
    """An unknown `model_key` is a KeyError at SETUP with the key and the sorted keys."""
    models = {"b": scalar(), "a": scalar()}
    with pytest.raises(KeyError, match=r"teacher.*\['a', 'b'\]"):
        Shell(models, SGD(models["a"].parameters(), lr=1.0), EMA(model_key="teacher"))
