"""Clipping beside torch's own functions: bitwise, for gradients of any shape, size and dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD

from functrain import ClipNorm, ClipValue, Shell, SkipNonFinite, named
from tests.scalars import Weight, sgd_shell, step

INF, NAN = float("inf"), float("nan")
SHAPES = st.lists(st.sampled_from([(), (1,), (3,), (17,), (2, 3), (5, 1, 2)]), min_size=1, max_size=9)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
SINGLE = st.just(torch.float32)
LIMITS = st.floats(0.1, 9.0)
ORDERS = st.sampled_from([2.0, 1.0, INF, 3.0, 0.5])


class Leaves(nn.Module):
    """Parameters that are zero, so that what is subtracted from them can be read off."""

    def __init__(self, like: list[Tensor]) -> None:
        super().__init__()
        self.leaves = nn.ParameterList([nn.Parameter(torch.zeros_like(leaf)) for leaf in like])

    def forward(self, slopes: list[Tensor]) -> Tensor:
        """Return a loss whose gradients are the slopes."""
        return torch.stack(
            [(leaf * slope).sum().double() for leaf, slope in zip(self.leaves, slopes, strict=True)]
        ).sum()


def drawn(shapes: list[tuple[int, ...]], dtype: torch.dtype, exponent: int, seed: int) -> list[Tensor]:
    """Return gradients of the shapes given, around a power of ten."""
    source = torch.Generator().manual_seed(seed)
    scale = 10.0**exponent
    return [(torch.randn(shape, generator=source, dtype=torch.float64) * scale).to(dtype) for shape in shapes]


def gradients(
    shapes: Any, dtypes: st.SearchStrategy[torch.dtype], exponents: st.SearchStrategy[int]
) -> st.SearchStrategy[list[Tensor]]:
    """Return a strategy of gradients."""
    return st.builds(drawn, shapes, dtypes, exponents, st.integers(0, 2**31))


def stepped(slopes: list[Tensor], hooks: Any, turns: int = 0, strict: bool = False) -> tuple[list[Tensor], Shell]:
    """Return what a step applies; with turns the parameters are dealt out to two optimizers, the later ones first."""
    model = Leaves(slopes)
    leaves = list(model.parameters())
    parts = [part for part in (leaves[turns:], leaves[:turns]) if part]
    shell = Shell(model, [SGD(part, lr=1.0) for part in parts], hooks, strict=strict)
    step(shell, slopes, model=model)
    return [-leaf.detach() for leaf in leaves], shell


def by_torch(slopes: list[Tensor], limit: float, order: float) -> tuple[list[Tensor], Tensor]:
    """Return gradients clipped by torch, and the norm it reports."""
    leaves = [nn.Parameter(torch.zeros_like(slope)) for slope in slopes]
    for leaf, slope in zip(leaves, slopes, strict=True):
        leaf.grad = slope.clone()
    norm = clip_grad_norm_(leaves, limit, norm_type=order)
    return [leaf.grad for leaf in leaves if leaf.grad is not None], norm


@given(
    slopes=gradients(SHAPES, DTYPES, st.integers(-30, 12)),
    limit=st.sampled_from([0.0, 1e-3, 1.0, 50.0, INF]),
    order=ORDERS,
    turns=st.integers(0, 9),
    strict=st.booleans(),
)
def test_a_clipped_norm_is_that_of_torch(
    slopes: list[Tensor], limit: float, order: float, turns: int, strict: bool
) -> None:
    """Any gradients, limit and order, however optimizers share the parameters: the bits of clip_grad_norm_."""
    right, norm = by_torch(slopes, limit, order)
    found, shell = stepped(slopes, ClipNorm(max_norm=limit, norm_type=order), turns, strict)
    torch.testing.assert_close(found, right, rtol=0, atol=0)
    torch.testing.assert_close(shell.state.metrics["grad_norm"], norm.float(), rtol=0, atol=0)


@pytest.mark.parametrize("strict", [False, True])
def test_the_order_of_optimizers_does_not_round(strict: bool) -> None:
    """Many parameters in two optimizers, the later ones first, are summed in the order of the model."""
    for seed in range(20):
        slopes = drawn([(3, 3)] * 12, torch.float32, 0, seed)
        right, _ = by_torch(slopes, 0.1, 2.0)
        found, _ = stepped(slopes, ClipNorm(max_norm=0.1), 7, strict)
        torch.testing.assert_close(found, right, rtol=0, atol=0)


@given(slopes=gradients(SHAPES, SINGLE, st.integers(20, 37)), order=st.sampled_from([2.0, 3.0, INF]))
def test_squares_that_overflow_do_not(slopes: list[Tensor], order: float) -> None:
    """Finite gradients whose squares overflow float32 are clipped as in double."""
    right, norm = by_torch([slope.double() for slope in slopes], 1.0, order)
    found, shell = stepped(slopes, ClipNorm(max_norm=1.0, norm_type=order))
    torch.testing.assert_close([each.double() for each in found], right, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(shell.state.metrics["grad_norm"], norm.float(), rtol=1e-5, atol=0)


@given(slopes=gradients(SHAPES, SINGLE, st.just(1)), order=ORDERS, limits=st.tuples(LIMITS, LIMITS))
def test_two_clips_are_two_calls(slopes: list[Tensor], order: float, limits: tuple[float, float]) -> None:
    """Clipping twice, by two norms, is calling torch twice."""
    right, _ = by_torch(by_torch(slopes, limits[0], order)[0], limits[1], 2.0)
    hooks = [ClipNorm(max_norm=limits[0], norm_type=order), named("second", ClipNorm(max_norm=limits[1]))]
    torch.testing.assert_close(stepped(slopes, hooks)[0], right, rtol=0, atol=0)


def test_mixed_dtypes_have_one_norm() -> None:
    """Gradients in bf16, float32 and float64, and an empty one, share the norm of them all."""
    slopes = [torch.tensor([3.0], dtype=torch.bfloat16), torch.tensor([4.0]), torch.tensor([12.0]).double()]
    for order, norm in ((2.0, 13.0), (1.0, 19.0), (INF, 12.0)):
        found, shell = stepped([*slopes, torch.zeros(0)], ClipNorm(max_norm=norm / 2, norm_type=order))
        assert shell.state.metrics["grad_norm"].item() == norm
        assert [each.tolist() for each in found] == [pytest.approx([x]) for x in (1.5, 2.0, 6.0)] + [[]]


VALUES = st.lists(st.sampled_from([0.0, 1.0, -3.0, 1e-8, 65504.0, -1e30, INF, -INF, NAN]), min_size=1, max_size=6)


@given(values=VALUES, limit=st.sampled_from([0.0, 1e-3, 1.0, 1e4, INF]), dtype=DTYPES, strict=st.booleans())
def test_clipped_values_are_those_of_torch(values: list[float], limit: float, dtype: torch.dtype, strict: bool) -> None:
    """Finite values have the bits of clip_grad_value_; what is not finite stays, for the skip hooks to see."""
    slope = torch.tensor(values, dtype=dtype)
    leaf = nn.Parameter(torch.zeros_like(slope))
    leaf.grad = slope.clone()
    clip_grad_value_([leaf], limit)
    found, _ = stepped([slope], ClipValue(clip_value=limit), strict=strict)
    expected = torch.where(slope.isfinite(), leaf.grad, slope)
    torch.testing.assert_close(found, [expected], rtol=0, atol=0, equal_nan=True)


@given(limit=st.sampled_from([0.0, 1.0, INF]), clips=st.booleans())
def test_a_clamp_hides_no_infinity_from_the_skip_hooks(limit: float, clips: bool) -> None:
    """An infinite gradient under a finite loss is vetoed, also behind ClipValue and beside ClipNorm."""
    model = Weight([0.0, 1.0])
    hooks = [ClipValue(clip_value=limit), SkipNonFinite(drop=False), *([ClipNorm(max_norm=1.0)] if clips else [])]
    shell = sgd_shell(model, hooks)
    with shell.batch():
        shell.update(model.w[0].sqrt() + model.w[1])
    assert (model.w.tolist(), shell.state.clock.skipped) == ([0.0, 1.0], 1)


@given(slopes=gradients(SHAPES, DTYPES, st.just(0)), wrong=st.sampled_from([INF, -INF, NAN]), order=ORDERS)
@pytest.mark.parametrize("strict", [False, True])
def test_a_norm_that_is_not_finite_is_reported_as_it_is(
    strict: bool, slopes: list[Tensor], wrong: float, order: float
) -> None:
    """One infinity or NaN among gradients: the norm that torch reports, and gradients that nobody touched."""
    slopes[-1].fill_(wrong)
    _, norm = by_torch(slopes, 1.0, order)
    found, shell = stepped(slopes, ClipNorm(max_norm=1.0, norm_type=order), strict=strict)
    torch.testing.assert_close(shell.state.metrics["grad_norm"], norm.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found, slopes, rtol=0, atol=0, equal_nan=True)
