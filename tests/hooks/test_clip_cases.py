"""Cases b01 to b10: what a clipped gradient is, for limits that are fixed."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

from functrain import (
    Accumulate,
    ClipNorm,
    ClipValue,
    MixedPrecision,
    Shell,
    SkipNonFinite,
)
from functrain.hooks.clip_adaptive import unit_clipped
from tests.scalars import Weight, applied, run, sgd_shell, step

INF = float("inf")
NUMBERS = st.integers(-50, 50).map(float)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4)
LIMITS = st.sampled_from([0.0, 0.1, 1.0, 7.0, 1e6, INF])


def clipped(gradient: list[float], limit: float) -> list[float]:
    """Return a gradient as it is after clipping to a norm."""
    norm = sum(each**2 for each in gradient) ** 0.5
    return [each * min(1.0, limit / (norm + 1e-6)) for each in gradient]


def mean_row(rows: list[tuple[float, float]]) -> list[float]:
    """Return the mean of each column."""
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("scale", [1.0, 65536.0, 2.0**24])
def test_b01_what_is_clipped_is_unscaled(scale: float) -> None:
    """A true gradient of 2 is clipped to 1, whatever the loss scale."""
    shell = sgd_shell(Weight(), MixedPrecision(precision="fp16", init_scale=scale) + ClipNorm(max_norm=1.0))
    run(shell, [2])
    assert applied(shell) == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_b01_values_are_clipped_unscaled(scale: float) -> None:
    """Clipping by value looks at true gradients, too."""
    hooks = MixedPrecision(precision="fp16", init_scale=scale) + ClipValue(clip_value=1.0)
    shell = sgd_shell(Weight([0.0, 0.0]), hooks)
    run(shell, [[2.0, 0.5]])
    assert applied(shell) == [1.0, 0.5]


def test_b02_a_window_is_clipped_once() -> None:
    """(3,0) and (0,4) in one window are clipped as their mean, not each on its own."""
    shell = sgd_shell(Weight([0.0, 0.0]), Accumulate(every=2) + ClipNorm(max_norm=1.0))
    run(shell, [[3.0, 0.0], [0.0, 4.0]])
    assert applied(shell) == pytest.approx([0.6, 0.8])


@given(rows=ROWS, limit=LIMITS, fp16=st.booleans())
def test_b02_any_window_is_clipped_as_its_mean(rows: list[tuple[float, float]], limit: float, fp16: bool) -> None:
    """Any gradients, window, limit and loss scale: the mean is clipped, and its own norm is reported."""
    precision = [MixedPrecision(precision="fp16")] if fp16 else []
    hooks = [Accumulate(every=len(rows)), *precision, ClipNorm(max_norm=limit)]
    shell = sgd_shell(Weight([0.0, 0.0]), hooks)
    run(shell, [list(row) for row in rows])
    mean = mean_row(rows)
    assert applied(shell) == pytest.approx(clipped(mean, limit), rel=1e-4, abs=1e-5)
    assert shell.state.metrics["grad_norm"].item() == pytest.approx(sum(x**2 for x in mean) ** 0.5, rel=1e-4, abs=1e-5)


def two_models() -> tuple[Weight, Weight, Any, Any]:
    """Return two models of one weight, as mappings of models and of optimizers."""
    a, b = Weight(), Weight()
    return a, b, {"a": a, "b": b}, {"a": SGD(a.parameters(), lr=1.0), "b": SGD(b.parameters(), lr=1.0)}


def update_both(shell: Shell, a: Weight, b: Weight, slopes: tuple[Any, Any]) -> None:
    """Run one micro-batch with a gradient for each of two models; None leaves a model out."""
    with shell.batch():
        losses = [model(slope) for model, slope in zip((a, b), slopes, strict=True) if slope is not None]
        shell.update(torch.stack(losses).sum())


def test_b03_two_models_share_one_norm() -> None:
    """Gradients 3 and 4 in two models with two optimizers are clipped as (3, 4)."""
    a, b, models, optimizers = two_models()
    update_both(Shell(models, optimizers, ClipNorm(max_norm=1.0)), a, b, (3, 4))
    assert [-a.w.item(), -b.w.item()] == pytest.approx([0.6, 0.8])


class Halves(nn.Module):
    """A model of two scalar weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, slopes: tuple[float, float]) -> Tensor:
        """Return a loss whose gradients are the slopes."""
        return self.a * slopes[0] + self.b * slopes[1]


@given(slopes=st.tuples(NUMBERS, NUMBERS), limit=LIMITS, split=st.booleans())
def test_b03_any_groups_share_one_norm(slopes: tuple[float, float], limit: float, split: bool) -> None:
    """However the parameters are spread over groups or optimizers, there is one norm."""
    model = Halves()
    groups = [{"params": [model.a]}, {"params": [model.b], "lr": 0.5}]
    optimizers = [SGD([group], lr=1.0) for group in groups] if split else SGD(groups, lr=1.0)
    step(Shell(model, optimizers, ClipNorm(max_norm=limit)), slopes, model=model)
    a, b = clipped(list(slopes), limit)
    assert [-model.a.item(), -model.b.item()] == pytest.approx([a, 0.5 * b], rel=1e-5, abs=1e-6)


CLIPS = [ClipNorm(max_norm=1.0), ClipNorm(max_norm=1.0, norm_type=INF), ClipNorm(max_norm=0.0)]


@pytest.mark.parametrize("gradient", [[INF, 1.0], [float("nan"), 1.0], [-INF, INF]])
@pytest.mark.parametrize("clip", CLIPS, ids=["norm", "largest", "zero"])
def test_b04_a_non_finite_gradient_is_vetoed(clip: ClipNorm, gradient: list[float]) -> None:
    """Under any clipping a gradient that is not finite makes no step, and the weights stay."""
    shell = sgd_shell(Weight([1.0, 2.0]), clip + SkipNonFinite(drop=False))
    run(shell, [gradient])
    assert applied(shell) == [-1.0, -2.0]
    assert (shell.state.clock.step, shell.state.clock.skipped) == (0, 1)


@pytest.mark.parametrize("drop", [True, False])
def test_b04_a_gradient_is_judged_where_the_loss_is_finite(drop: bool) -> None:
    """A finite loss with a gradient of infinity is vetoed at the step, and the next window is clean."""
    model = Weight([0.0, 2.0])
    shell = sgd_shell(model, ClipNorm(max_norm=1.0) + SkipNonFinite(drop=drop))
    with shell.batch():
        shell.update(model.w[0].sqrt() + model.w[1])
    assert applied(shell) == [0.0, -2.0]
    run(shell, [[0.6, 0.8]])
    assert applied(shell) == pytest.approx([0.6, -1.2])


@pytest.mark.parametrize("wrong", [-1, -1.0, float("nan"), True, "2", None, [1.0]])
def test_b05_limits_that_are_none_are_refused(wrong: Any) -> None:
    """Negative, NaN, a bool, a string: every fixed limit is checked when the hook is made."""
    with pytest.raises(pydantic.ValidationError):
        ClipNorm(max_norm=wrong)
    with pytest.raises(pydantic.ValidationError):
        ClipValue(clip_value=wrong)


@given(gradient=st.lists(NUMBERS, min_size=2, max_size=2))
def test_b05_infinity_only_measures(gradient: list[float]) -> None:
    """Under a limit of infinity gradients pass bitwise, and their norm is published."""
    shell = sgd_shell(Weight([0.0, 0.0]), ClipNorm(max_norm=INF))
    run(shell, [gradient])
    assert applied(shell) == gradient
    assert shell.state.metrics["grad_norm"].item() == pytest.approx((gradient[0] ** 2 + gradient[1] ** 2) ** 0.5)


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_b06_zero_gradients_stay_zero(limit: float) -> None:
    """All-zero gradients under any limit, also 0, are zeros and no NaN."""
    shell = sgd_shell(Weight([0.0, 0.0]), ClipNorm(max_norm=limit))
    run(shell, [[0.0, 0.0]])
    assert applied(shell) == [0.0, 0.0]
    run(shell, [[3.0, 4.0]])
    assert applied(shell) == pytest.approx([0.6 * limit, 0.8 * limit])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_adaptive_clipping_of_the_largest_gradients(dtype: torch.dtype) -> None:
    """Where limit over norm is too small a number for the dtype, units still come to their limit, not above it."""
    grad = torch.full((1, 1), 0.9 * torch.finfo(dtype).max, dtype=dtype)
    weight = torch.full((1, 1), 1e-3, dtype=dtype)
    clipped = unit_clipped(grad, weight, 0.01, 1e-4)
    assert float(clipped) == pytest.approx(0.01 * float(weight), rel=3 * torch.finfo(dtype).eps + 0.005)
