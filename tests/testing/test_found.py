"""What the laws have found, by hand: numbers at which forms, donation and dtypes once disagreed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from functrain import (
    Accumulate,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    FixedLimit,
    Hook,
    MixedPrecision,
    SkipNonFinite,
    SkipSpikes,
    Stage,
    TrainState,
    fold,
)
from functrain._foreach import multiply_, scaled
from functrain._window import Window
from functrain.testing import laws
from functrain.testing.breach import require_same
from functrain.testing.forms import in_form
from functrain.testing.laws.aliases import storages
from functrain.testing.scene import Scene

STEP, AFTER = Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP
INF = float("inf")


def scene(hook: Hook, grad: Tensor, stage: Stage = STEP, will_skip: bool = False, **fields: Any) -> Scene:
    """Return a scene with one gradient, as large as its weight."""
    given = {"params": {"main": {"w": torch.ones_like(grad)}}, "grads": {"main": {"w": grad}}, "loss": torch.ones(())}
    return Scene(hook, fold(hook).prepared(TrainState(**{**given, **fields})), stage, will_skip)


def outcomes(found: Scene) -> list[Any]:
    """Return what each way to run a scene gives; the laws say that they agree, and are asked."""
    laws.DONATION.check(found)
    laws.FORMS.check(found)
    return [found.run(form=form, donated=donated) for form in ("python", "tensor") for donated in (False, True)]


def gradients(found: Scene) -> list[Tensor]:
    """Return the gradient after each way to run a scene."""
    return [outcome.state.grads["main"]["w"] for outcome in outcomes(found)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (64,)])
def test_a_factor_is_rounded_once(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Donated or not, number or tensor: the product is that of the gradient's dtype, or of float32 if that is half."""
    grad, factor = torch.linspace(0.1, 9.0, 64).to(dtype)[: shape[0] if shape else 1].reshape(shape), 1 / 3
    expected = (grad.to(torch.promote_types(dtype, torch.float32)) * factor).to(dtype)
    for number in (factor, torch.tensor(factor, dtype=torch.float64)):
        donated = grad.clone()
        multiply_([donated], number)
        assert torch.equal(scaled(grad, number), expected)
        assert torch.equal(donated, expected)


@pytest.mark.parametrize("entered", [3, 5, 7])
def test_the_mean_over_what_entered_is_in_double(entered: int) -> None:
    """A quotient of two counts is a double in both forms, which float64 gradients show."""
    window = Window(boundary=True, entered=entered, divisor=8, total=float(entered))
    for found in gradients(scene(Accumulate(every=8), torch.ones(2, dtype=torch.float64), window=window)):
        assert found.tolist() == [8 / entered] * 2


def test_a_complex_infinity_times_one_stays_what_it_is() -> None:
    """A step that is off leaves complex gradients bitwise alone: inf+0j times 1+0j would be inf+nanj."""
    grad = torch.tensor([complex(INF, 0.0), complex(-0.0, -0.0), complex(1.0, INF)], dtype=torch.complex64)
    window = Window(boundary=True, entered=1, divisor=2, total=1.0)
    for hook in (Accumulate(every=2), ClipNorm(max_norm=1.0)):
        for found in gradients(scene(hook, grad, will_skip=True, window=window)):
            assert torch.equal(torch.view_as_real(found), torch.view_as_real(grad))


def test_a_huge_complex_gradient_is_finite() -> None:
    """The magnitude of 3e38+3e38j overflows, and each of its parts is finite all the same."""
    grad = torch.tensor([complex(3e38, 3e38)], dtype=torch.complex64)
    assert [bool(each.proceed) for each in outcomes(scene(SkipNonFinite(), grad))] == [True] * 4


def test_clipping_half_precision_zeros_to_nothing_gives_zeros() -> None:
    """1e-6 has no finite reciprocal in float16, and that times a limit of 0 is no number."""
    for found in gradients(scene(ClipNorm(max_norm=0.0), torch.zeros(3, dtype=torch.float16))):
        assert found.tolist() == [0.0] * 3


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 1e30), (torch.float16, 65510.0), (torch.float32, 1e39)])
def test_a_limit_beyond_the_dtype_clamps_nothing_that_is_in_it(dtype: torch.dtype, limit: float) -> None:
    """The limit is rounded to what the gradient's dtype can hold, infinity included."""
    grad = torch.tensor([-6e4, 2.0, 6e4]).to(dtype)
    for found in gradients(scene(ClipValue(clip_value=limit), grad)):
        assert torch.equal(found, grad)


@pytest.mark.parametrize("limit", [0.1, 0.7, 1.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_the_coefficient_is_rounded_as_torch_rounds_it(limit: float, dtype: torch.dtype) -> None:
    """A number over a tensor is the reciprocal times the number, for a limit in the slot as a tensor, too."""
    for length in range(1, 12):
        grad = torch.linspace(0.3, 2.0, length).to(dtype)
        weight = torch.nn.Parameter(torch.zeros_like(grad))
        weight.grad = grad.clone()
        torch.nn.utils.clip_grad_norm_([weight], limit)
        assert all(torch.equal(found, weight.grad) for found in gradients(scene(ClipNorm(max_norm=limit), grad)))


def test_a_ratio_meets_half_precision_units_unrounded() -> None:
    """The ratio of adaptive clipping is a double that loses nothing before it meets a norm."""
    for length in range(1, 12):
        gradients(scene(ClipAdaptive(clip=0.1), torch.linspace(1.0, 5.0, length).half()))


@pytest.mark.parametrize(
    "hook",
    [
        ClipNorm(max_norm=1.0),
        ClipPercentile(),
        ClipZScore(),
        SkipNonFinite(drop=False),
        SkipSpikes(by=FixedLimit(limit=0.5)),
        SkipSpikes(by=FixedLimit(limit=0.5), of="grad_norm"),
    ],
    ids=repr,
)
def test_a_step_that_is_off_is_off_for_a_tensor_too(hook: Hook) -> None:
    """Told so by a tensor, a hook keeps slot and metrics, and claims no veto that it did not make."""
    found = scene(hook, torch.tensor([3.0, INF]), will_skip=True, window=Window(entered=1, total=1.0))
    for outcome in outcomes(found):
        assert bool(outcome.proceed)
        slots = (in_form(each.hooks, "tensor") for each in (outcome.state, found.state))
        require_same(*slots, what="the slot moved")
        assert all(metric.isnan() for metric in outcome.state.metrics.values())


def test_the_share_of_a_new_norm_is_a_double() -> None:
    """1/3 of a count that is a tensor would be a float32: the mean of the warm-up differs in the eighth digit."""
    hook = ClipZScore(warmup=9)
    found = scene(hook, torch.tensor([1.0]), AFTER)
    slot = found.state.hooks["clip_zscore"] | {"seen": torch.tensor(2), "norm": torch.tensor(0.1, dtype=torch.float64)}
    found = Scene(hook, found.state.with_slot("clip_zscore", slot), AFTER, False)
    for outcome in outcomes(found):
        assert outcome.state.hooks["clip_zscore"]["mean"].item() == (1.0 - (1.0 - 1.0 / 3)) * 0.1


def test_a_window_without_weights_gets_none() -> None:
    """A unit that an earlier, weighted window has left does not touch the 1 of a counted one."""
    found = scene(Accumulate(every=2), torch.ones(1), Stage.DO_BACKWARD, scaler={"scale": 4.0, "found_inf": {}})
    slot = found.state.hooks["accumulate"] | {"unit": 1024.0}
    found = Scene(found.hook, found.state.with_slot("accumulate", slot), Stage.DO_BACKWARD, False)
    assert [float(outcome.state.window.weight) for outcome in outcomes(found)] == [1.0] * 4


def test_a_scaler_without_optimizers_gains_none() -> None:
    """Gradients that no optimizer holds add no entry to found_inf."""
    found = scene(MixedPrecision(precision="fp16"), torch.tensor([INF]), scaler={"scale": 4.0, "found_inf": {}})
    assert all(len(outcome.state.scaler["found_inf"]) == 0 for outcome in outcomes(found))


@pytest.mark.parametrize("hook", [ClipZScore(), SkipSpikes()], ids=repr)
def test_no_two_places_of_a_slot_are_one_tensor(hook: Hook) -> None:
    """Neither after init nor after reset: what is donated from one place would be overwritten in the other."""
    slot = hook.init(TrainState())
    for each in (slot, hook.reset(slot)):
        held = list(storages(each, "slot").values())
        assert len(set(held)) == len(held)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_gradients_without_elements_have_lanes_too(shape: tuple[int, ...]) -> None:
    """Where nothing can be looked at, the norm that is taken again after an overflow is of no gradient at all."""
    laws.LANES_ALONE.check(scene(ClipNorm(max_norm=1.0), torch.zeros(shape)))
