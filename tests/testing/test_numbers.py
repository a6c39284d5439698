"""Counters, windows and the loss scale: Python numbers and 0-d tensors go through the same values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import FrozenMap, TrainState
from functrain import _scaler as scaler
from functrain._clock import Clock
from functrain._window import Window
from functrain.hooks.accumulate import power_of_two
from functrain.testing.breach import require_same
from functrain.testing.counters import clocks, scalers, windows
from functrain.testing.forms import as_tensor, in_form

KEYS = ("a", "b")
FACTORS = st.sampled_from([0.1, 0.5, 1.5, 2.0, 3.0, 2.0**40])


@st.composite
def rules(draw: st.DrawFn) -> FrozenMap[Any]:
    """Draw a rule for the loss scale, with odd factors and with floors and caps that bind."""
    return FrozenMap(
        {
            "growth_factor": 1.0 + draw(FACTORS),
            "backoff_factor": draw(st.sampled_from([0.1, 0.3, 0.5])),
            "growth_interval": draw(st.integers(1, 4)),
            "min_scale": draw(st.sampled_from([1e-30, 1.0, 4.0])),
            "max_scale": draw(st.sampled_from([65536.0, 2.0**24, 3e38, float("inf")])),
        }
    )


def agree(in_python: Any, in_tensors: Any) -> None:
    """Check that a result in Python's form and one in tensors are the same."""
    require_same(in_form(in_python, "tensor"), in_form(in_tensors, "tensor"), "the two forms differ")


@given(scalers(KEYS), rules(), st.tuples(st.booleans(), st.booleans()))
def test_the_loss_scale(numbers: FrozenMap[Any], rule: FrozenMap[Any], stepped: tuple[bool, bool]) -> None:
    """Scale and tracker move alike, rounded to float32 at the same places."""
    state = TrainState(scaler=numbers, stepped=dict(zip(KEYS, stepped, strict=True)))
    found = scaler.settled(in_form(state, "tensor"), in_form(rule, "tensor"))
    agree(scaler.settled(state, rule).scaler, found.scaler)


@given(clocks(KEYS), st.booleans(), st.booleans(), st.booleans())
def test_the_clock(clock: Clock, boundary: bool, first: bool, second: bool) -> None:
    """Steps, skips and epochs count alike."""
    ran, stepped = first or second, FrozenMap({"a": first, "b": second})

    def after(form: Any) -> Clock:
        here, flags = in_form(clock, form), in_form(stepped, form)
        return here.updated(in_form(boundary, form), flags, in_form(ran, form)).next_epoch()

    agree(after("python"), after("tensor"))


@given(windows(), st.booleans(), st.none() | st.integers(0, 9) | st.floats(0, 9))
def test_the_window(window: Window, last: bool, weight: Any) -> None:
    """Opening, weighing, entering and emptying count alike, whole weights included."""

    def after(form: Any) -> list[Window]:
        opened = in_form(window, form).opened(in_form(last, form))
        weighed = opened if weight is None else opened.weighed(in_form(weight, form))
        return [opened, weighed, weighed.with_entry(), weighed.with_entry().emptied()]

    agree(after("python"), after("tensor"))


@given(st.floats(0, 2.0**900) | st.integers(-500, 500).map(lambda power: 2.0**power) | st.just(0.0))
def test_the_unit_of_weights(weight: float) -> None:
    """The power of two at or above a weight is exact in both forms, powers of two themselves included."""
    unit = power_of_two(weight)
    agree(unit, power_of_two(as_tensor(weight)))
    assert weight <= unit
    assert weight == 0 or unit < 2 * weight


@pytest.mark.parametrize("scale", [0.0, 2.0**-128, 1e-30, 0.1, 65536.0])
def test_the_reciprocal_of_the_scale(scale: float) -> None:
    """Infinity stands for 1/0 in both forms, so that what is unscaled by it is seen to be non-finite."""
    agree(scaler.reciprocal(scale), scaler.reciprocal(torch.tensor(scale, dtype=torch.float64)))


@pytest.mark.parametrize("number", [1e39, 1e300, 3.5e38, 1.0, 0.1, 1e-50])
def test_a_number_beyond_single_precision_is_infinite(number: float) -> None:
    """What float32 cannot hold becomes infinity or 0, in both forms."""
    agree(scaler.as_float32(number), scaler.as_float32(torch.tensor(number, dtype=torch.float64)))
