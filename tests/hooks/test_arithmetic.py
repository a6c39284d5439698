"""Arithmetic over tensors of several dtypes: what is rounded, and when."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain._foreach import copy_, lerped, multiply_, scaled
from functrain._gradients import any_non_finite, by_optimizer, measured, total_norm
from functrain._owners import Owners
from functrain._scaler import as_float32
from functrain._state import TrainState
from functrain.hooks.ring import filled, ring

FACTORS = st.floats(0.0, 2.0, width=32)


@given(factor=FACTORS, numbers=st.lists(st.floats(-4.0, 4.0, width=16), min_size=1, max_size=4))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_in_place_and_out_of_place_agree_bitwise(dtype: torch.dtype, factor: float, numbers: list[float]) -> None:
    """A factor is rounded once, also where it meets half precision: 1/3 is not cast to bfloat16 first."""
    tensors = [torch.tensor(numbers, dtype=dtype), torch.tensor(numbers[:1], dtype=dtype)]
    for given_as in (factor, torch.tensor(factor, dtype=torch.float64)):
        found = [each.clone() for each in tensors]
        multiply_(found, given_as)
        assert all(torch.equal(one, scaled(other, given_as)) for one, other in zip(found, tensors, strict=True))


@pytest.mark.parametrize("end", [torch.bfloat16, torch.float16, torch.float64])
def test_a_lerp_is_in_the_dtype_of_its_start(end: torch.dtype) -> None:
    """A shadow in single precision over weights in any other."""
    found = lerped(torch.zeros(2), torch.ones(2, dtype=end), torch.tensor(0.25, dtype=torch.float64))
    assert torch.equal(found, torch.full((2,), 0.25))


def test_copies_convert() -> None:
    """Into the dtype of the target, several at once."""
    targets = [torch.zeros(1), torch.zeros(2, dtype=torch.float64)]
    copy_(targets, [torch.ones(1, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float16)])
    assert [each.dtype for each in targets] == [torch.float32, torch.float64]
    assert all(bool((each == 1).all()) for each in targets)


def test_a_ring_keeps_its_dtype() -> None:
    """A value in double does not turn the ring into doubles."""
    found = filled(ring(3, torch.device("cpu")), 4, torch.tensor(5.0, dtype=torch.float64))
    assert found.dtype is torch.float32
    assert torch.equal(found[1], torch.tensor(5.0))


@given(factor=FACTORS, parts=st.lists(st.floats(width=32), min_size=2, max_size=2))
def test_real_factors_scale_the_parts_of_a_complex_number(factor: float, parts: list[float]) -> None:
    """An infinite part leaves the other one alone, in place and out of place: complex times real + 0j would be NaN."""
    before = torch.tensor([complex(*parts)], dtype=torch.complex64)
    expected = torch.view_as_real(before) * factor
    multiply_([after := before.clone()], factor)
    for found in (after, scaled(before, factor)):
        assert torch.equal(torch.view_as_real(found).nan_to_num(1.5), expected.nan_to_num(1.5))


@given(st.lists(st.floats(2.0**100, 2.0**126, width=32), min_size=2, max_size=6))
def test_a_norm_whose_squares_overflow_is_exact_for_single_numbers(numbers: list[float]) -> None:
    """The quotients by the largest are taken in double, so that the norm of 0-d gradients is rounded once."""
    named = {"main": {str(place): torch.tensor(number) for place, number in enumerate(numbers)}}
    exact = torch.tensor(numbers, dtype=torch.float64).norm()
    found = total_norm(TrainState(params=named, grads=named))
    assert found.double().item() == pytest.approx(exact.item(), rel=2.0**-24)


def test_a_double_that_single_precision_does_not_hold() -> None:
    """Is infinite, as it is for a tensor."""
    assert as_float32(1e300) == float("inf")
    assert as_float32(torch.tensor(1e300, dtype=torch.float64)) == float("inf")


MAGNITUDES = st.sampled_from([0.0, 1.0, -3e4, 1e19, -3e38, math.inf, -math.inf, math.nan])


@given(numbers=st.lists(st.lists(MAGNITUDES, max_size=3), min_size=1, max_size=3), donated=st.booleans())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64])
def test_only_what_is_not_finite_is_found(dtype: torch.dtype, numbers: list[list[float]], donated: bool) -> None:
    """The quick look at the norm never errs: squares that overflow are finite, and an infinity of any sign is not."""
    grads = {str(place): torch.tensor(each).to(dtype) for place, each in enumerate(numbers)}
    expected = any(not bool(grad.isfinite().all()) for grad in grads.values())
    state = TrainState(params={"main": grads}, grads={"main": grads}, donated=donated)
    assert any_non_finite(state) is expected


def test_an_optimizer_that_overflowed_has_been_judged() -> None:
    """Its infinities are no longer looked at; those of another one are."""
    grads = {"a": {"w": torch.tensor([math.inf])}, "b": {"w": torch.ones(1)}}
    state = TrainState(
        params=grads,
        grads=grads,
        owners=Owners({key: [(key, "w")] for key in grads}),
        scaler={"scale": 1.0, "growth_tracker": 0, "found_inf": {"a": True, "b": False}},
    )
    assert not any_non_finite(state)
    assert bool(any_non_finite(state.replace(grads=grads | {"b": {"w": torch.tensor([math.nan])}})))


KINDS = {"a": torch.float32, "b": torch.float64, "c": torch.float32}


def test_masks_follow_gradients_of_several_dtypes() -> None:
    """Norms are taken dtype by dtype; which of them overflowed is looked up in the same order."""
    grads = {key: {"w": torch.full((1,), 2.0 ** (2 * place), dtype=KINDS[key])} for place, key in enumerate(KINDS)}
    owners = Owners({key: [(key, "w")] for key in KINDS})
    state = TrainState(params=grads, grads=grads, owners=owners)
    for hidden in KINDS:
        found = {key: key == hidden for key in KINDS}
        masked = state.replace(scaler={"scale": 1.0, "growth_tracker": 0, "found_inf": found})
        expected = math.hypot(*(grads[key]["w"].item() for key in KINDS if key != hidden))
        assert total_norm(masked).item() == pytest.approx(expected, rel=1e-6)


def test_gradients_are_sorted_for_their_owners() -> None:
    """The same gradients under other owners are other lists."""
    grads = {"a": {"w": torch.ones(1)}, "b": {"w": torch.ones(1)}}
    tables = [{"one": [("a", "w"), ("b", "w")]}, {"one": [("a", "w")], "two": [("b", "w")]}, {"one": [("b", "w")]}]
    state = TrainState(params=grads, grads=grads)
    found = [by_optimizer(state.replace(owners=Owners(table))) for table in tables]
    assert [{key: len(held) for key, held in each.items()} for each in found] == [
        {"one": 2},
        {"one": 1, "two": 1},
        {"one": 1},
    ]


def test_the_largest_element_with_a_scaler_and_nothing_to_measure() -> None:
    """A gradient without elements has no maximum, and is left out beside a loss scale as well."""
    grads = {"a": {"w": torch.tensor([-3.0, 2.0]), "empty": torch.empty(0)}}
    scaler = {"scale": 1.0, "growth_tracker": 0, "found_inf": {"": False}}
    assert total_norm(TrainState(params=grads, grads=grads, scaler=scaler), math.inf).item() == 3.0


def test_the_first_norm_of_a_batch_stays_in_every_lane() -> None:
    """Lanes in which nobody has measured take the norm and its limit; the others keep what they have."""

    def published(known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = TrainState(metrics={"grad_norm": known, "grad_limit": known})
        found = measured(state, torch.tensor(3.0), 2.0, will_skip=False).metrics
        return found["grad_norm"], found["grad_limit"]

    norms, limits = torch.func.vmap(published)(torch.tensor([math.nan, 5.0]))
    assert (norms.tolist(), limits.tolist()) == ([3.0, 5.0], [2.0, 5.0])
