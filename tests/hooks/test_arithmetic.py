"""Arithmetic over tensors of several dtypes: what is rounded, and when."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain._foreach import copy_, lerped, multiply_, scaled
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
