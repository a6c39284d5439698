"""The formulas of the field, and that they are the same for Python's numbers and for tensors."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import EMA, InverseGammaWarmup, TensorFlowWarmup, YOLOWarmup, gamma_of, relative_std_of
from functrain.hooks.numbers import power
from tests.scalars import Weight, run, sgd_shell

FORMULAS = [TensorFlowWarmup(), InverseGammaWarmup(), InverseGammaWarmup(inv_gamma=9.0, power=0.75), YOLOWarmup()]


def diffusers(step: int, inv_gamma: float, power_: float, low: float, high: float) -> float:
    """Return the decay as EMAModel.get_decay of Diffusers and ModelEmaV3 of timm state it."""
    return max(min(1 - (1 + step / inv_gamma) ** -power_, high), low)


@given(st.integers(0, 10**7), st.sampled_from([0.5, 0.999, 0.9999]), st.sampled_from([0.0, 0.3]))
def test_the_formulas_are_those_of_their_sources(n: int, decay: float, low: float) -> None:
    """Each beside the expression that its source has."""
    assert TensorFlowWarmup()(n, decay) == min(decay, (1 + n) / (10 + n))
    made = InverseGammaWarmup(inv_gamma=2.0, power=0.75, min_decay=low)
    assert made(n, decay) == diffusers(n, 2.0, 0.75, low, decay)
    assert YOLOWarmup(tau=100.0)(n, decay) == pytest.approx(decay * (1 - math.exp(-n / 100)), abs=1e-15)


@given(st.sampled_from(FORMULAS), st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_both_kinds_of_numbers(formula: Any, n: int, decay: float) -> None:
    """Bitwise the same in double, inside the bounds, and never falling."""
    found = formula(n, decay)
    tensor = formula(torch.tensor(n), torch.tensor(decay, dtype=torch.float64))
    assert (tensor.dtype, tensor.item()) == (torch.float64, found)
    assert 0 <= found <= decay
    assert formula(n + 1, decay) >= found


@given(st.floats(0, 1), st.floats(0, 200))
def test_powers_of_both_kinds(base: float, exponent: float) -> None:
    """Whichever of the two is a tensor, the result is bitwise Python's."""
    kinds = [lambda number: number, lambda number: torch.tensor(number, dtype=torch.float64)]
    found = {float(power(one(base), other(exponent))) for one in kinds for other in kinds}
    assert found == {base**exponent}


@pytest.mark.parametrize(("first", "counts"), [("copy", [0, 1]), ("lerp", [0, 1, 2]), ("zero", [0, 1, 2])])
def test_a_formula_counts_lerps(first: Any, counts: list[int]) -> None:
    """It is asked with the number of lerps so far: a copy is none, a move from the first weights or from zero is."""
    asked: list[Any] = []

    def formula(n: Any, decay: Any) -> Any:
        asked.append(n)
        return decay

    run(sgd_shell(Weight(), [EMA(first=first, warmup=formula)]), [-1.0] * 3)
    assert sorted(set(asked)) == counts


@given(st.sampled_from(FORMULAS))
def test_formulas_are_data(formula: Any) -> None:
    """They compare by value, pickle, and print as what makes them."""
    assert pickle.loads(pickle.dumps(formula)) == formula
    assert eval(repr(formula)) == formula  # noqa: S307 - what repr promises


@given(st.floats(1e-4, 0.2886))
def test_widths_and_exponents(std: float) -> None:
    """One is the inverse of the other, to the last digits."""
    assert relative_std_of(gamma_of(std)) == pytest.approx(std, rel=1e-12)


@pytest.mark.parametrize("std", [0.0, -0.1, 0.2887, 1.0, float("nan")])
def test_a_width_that_no_exponent_has(std: float) -> None:
    """Is refused with the bounds."""
    with pytest.raises(ValueError, match=r"relative_std must be in \(0, 0\.2886\], got"):
        gamma_of(std)
