"""Decisions that read the same for Python values and for 0-d tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from functrain import FrozenMap, select
from functrain._select import beside, both, either, equal, is_multiple, maximum, minimum, negate, peek, wide
from functrain._tree import leaves

BOOLS = st.booleans()
FORMS = st.sampled_from(["python", "tensor"])
FLOATS = st.floats(allow_nan=False, width=64)


def in_form(value: Any, form: str) -> Any:
    """Return a Python number as it is, or as the 0-d tensor that the pure engine would hold."""
    return value if form == "python" else wide(value, torch.zeros(()))


def test_a_bool_runs_one_thunk_only() -> None:
    """The branch not taken is never called."""
    assert select(True, lambda: 1, lambda: 1 // 0) == 1
    assert select(False, lambda: 1 // 0, lambda: 2) == 2


def test_a_tensor_runs_both_thunks() -> None:
    """A tensor's value is never asked for: both branches are computed, once each."""
    seen: list[str] = []
    select(torch.tensor(True), lambda: seen.append("then") or 1, lambda: seen.append("otherwise") or 2)
    assert seen == ["then", "otherwise"]


def test_a_tensor_without_data_can_decide() -> None:
    """Select works on a device that holds no data, so it cannot have read it."""
    pred = torch.zeros((), dtype=torch.bool, device="meta")
    assert select(pred, lambda: torch.ones(2, device="meta"), lambda: torch.zeros(2, device="meta")).shape == (2,)


@given(BOOLS, st.floats(), st.floats())
def test_a_tensor_picks_what_the_bool_picks(pred: bool, then: float, otherwise: float) -> None:
    """Leaf by leaf, nested, for tensors and for numbers of every kind."""

    def tree(number: float, whole: int, flag: bool) -> Any:
        return FrozenMap({"t": torch.tensor([number]), "n": (number, whole, flag)})

    thunks = (lambda: tree(then, 1, True), lambda: tree(otherwise, 2, False))
    for by_bool, by_tensor in zip(
        leaves(select(pred, *thunks)), leaves(select(torch.tensor(pred), *thunks)), strict=True
    ):
        expected = wide(by_bool, torch.zeros(()))
        assert torch.equal(expected.nan_to_num(7.0), wide(by_tensor, expected).nan_to_num(7.0))
        assert expected.dtype is wide(by_tensor, expected).dtype


def test_nan_in_the_branch_not_taken_does_not_leak_into_gradients() -> None:
    """The gradient through a select is that of the branch taken."""
    x = torch.tensor(2.0, requires_grad=True)
    select(torch.tensor(False), lambda: torch.full((), float("nan")), lambda: 3 * x).backward()
    assert x.grad is not None
    assert x.grad.item() == 3.0


def test_a_leaf_that_both_branches_share_is_passed_on() -> None:
    """The very same object comes back, so identities that caches rely on survive a decision."""
    shared, opaque = torch.ones(3), object()
    found = select(torch.tensor(False), lambda: (shared, opaque, 1), lambda: (shared, opaque, 1))
    assert found[0] is shared
    assert found[1] is opaque
    assert found[2] == 1


@given(BOOLS, BOOLS, FORMS, FORMS)
def test_logic_is_that_of_bools(a: bool, b: bool, form_a: str, form_b: str) -> None:
    """both, either and negate agree with and, or and not in every mix of forms."""
    left, right = in_form(a, form_a), in_form(b, form_b)
    assert bool(both(left, right)) is (a and b)
    assert bool(either(left, right)) is (a or b)
    assert bool(negate(left)) is (not a)


@given(BOOLS, BOOLS)
def test_logic_of_bools_stays_python(a: bool, b: bool) -> None:
    """Two Python bools never become a tensor; a deciding bool wins over a tensor at once."""
    assert all(isinstance(found, bool) for found in (both(a, b), either(a, b), negate(a)))
    assert both(False, torch.tensor(True)) is False
    assert either(torch.tensor(False), True) is True
    assert isinstance(both(torch.tensor(a), True), Tensor)


@given(FLOATS, FLOATS, FORMS, FORMS)
def test_extremes_are_those_of_python(a: float, b: float, form_a: str, form_b: str) -> None:
    """Maximum and minimum agree in every mix of forms, in double."""
    left, right = in_form(a, form_a), in_form(b, form_b)
    assert float(maximum(left, right)) == max(a, b)
    assert float(minimum(left, right)) == min(a, b)


@given(st.integers(0, 100), st.integers(1, 10), FORMS)
def test_counts_compare_in_both_forms(count: int, n: int, form: str) -> None:
    """is_multiple and equal agree with Python."""
    assert bool(is_multiple(in_form(count, form), n)) is (count % n == 0)
    assert bool(equal(in_form(count, form), n)) is (count == n)


@pytest.mark.parametrize(("number", "dtype"), [(True, torch.bool), (1, torch.int64), (0.1, torch.float64)])
def test_wide_keeps_python_width(number: Any, dtype: torch.dtype) -> None:
    """A number becomes a tensor without losing a bit."""
    found = wide(number, torch.zeros(()))
    assert (found.dtype, found.item(), found.ndim) == (dtype, number, 0)


def test_beside_casts_only_tensors() -> None:
    """A double meets a tensor in that tensor's dtype, a Python number as it is."""
    assert beside(0.1, torch.ones(1)) == 0.1
    met = beside(torch.tensor(0.1, dtype=torch.float64), torch.ones(1))
    assert met.dtype is torch.float32
    assert torch.equal(torch.ones(1) * met, torch.ones(1) * 0.1)


def test_peek_reads_only_what_is_free() -> None:
    """On the CPU a flag is read; on a device without data, and under vmap, it stays a tensor."""
    assert peek(True) is True
    assert peek(torch.tensor(False)) is False
    waiting = torch.zeros((), dtype=torch.bool, device="meta")
    assert peek(waiting) is waiting
    kinds: list[type] = []
    torch.func.vmap(lambda flag: (kinds.append(type(peek(flag))), flag)[1])(torch.tensor([True, False]))
    assert kinds == [Tensor]


def test_extremes_of_infinities_need_no_cast() -> None:
    """An infinite limit only measures, in both forms."""
    assert minimum(1.0, math.inf) == 1.0
    assert minimum(torch.tensor(1.0), math.inf).item() == 1.0  # pyright: ignore[reportAttributeAccessIssue]


def test_the_larger_of_a_number_and_a_tensor() -> None:
    """Whichever of the two is Python's, in the dtype of the tensor."""
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    assert [maximum(2.0, one).item(), maximum(one, 2.0).item(), minimum(1.0, two).item(), minimum(two, 1.0).item()] == [
        *(2.0, 2.0),
        *(1.0, 1.0),
    ]
