"""SGD beside ``torch.optim.SGD``: every option, bitwise, in every form of run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import _tree, pure
from functrain._tree import FrozenMap
from tests.pure.optimizing import drawn, furthest, gradients, pure_path, torch_path

FLOATS = (torch.float32, torch.float64)
NUMBERS = ("lr", "momentum", "dampening", "weight_decay")


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """Return options of SGD that go together."""
    momentum = draw(st.just(0.0) | st.floats(0.01, 1.0))
    nesterov = momentum > 0.0 and draw(st.booleans())
    return {
        "lr": draw(st.floats(0.0, 0.5)),
        "momentum": momentum,
        "dampening": 0.0 if nesterov else draw(st.just(0.0) | st.floats(0.0, 1.0)),
        "weight_decay": draw(st.just(0.0) | st.floats(1e-6, 0.5)),
        "nesterov": nesterov,
        "maximize": draw(st.booleans()),
    }


@given(chosen=options(), dtype=st.sampled_from(FLOATS), seed=st.integers(0, 2**16))
def test_fifty_steps_are_bitwise_those_of_torch(chosen: dict[str, Any], dtype: torch.dtype, seed: int) -> None:
    """Any options: after each of 50 steps every parameter has the same bits."""
    start, grads = drawn(seed, dtype), gradients(50, dtype, seed)
    ours = pure_path(pure.sgd(**chosen), start, grads)
    for mine, theirs in zip(ours, torch_path(lambda p: torch.optim.SGD(p, **chosen), start, grads), strict=True):
        assert all(torch.equal(leaf, theirs["main"][name]) for name, leaf in mine["main"].items())


@given(chosen=options(), seed=st.integers(0, 2**16))
def test_an_update_is_what_a_step_adds(chosen: dict[str, Any], seed: int) -> None:
    """``update`` gives the difference that ``step`` makes, and the same state."""
    optimizer, start = pure.sgd(**chosen), drawn(seed, torch.float64)
    state, grads = optimizer.init(start), drawn(seed + 1, torch.float64)
    params, stepped = optimizer.step(grads, state, start)
    updates, updated = optimizer.update(grads, state, start)
    assert torch.equal(updates["main"]["odd"], params["main"]["odd"] - start["main"]["odd"])
    assert all(map(torch.equal, _tree.leaves(stepped), _tree.leaves(updated)))


@given(chosen=st.lists(options(), min_size=2, max_size=4), dtype=st.sampled_from(FLOATS))
def test_lanes_of_numbers_are_runs_alone(chosen: list[dict[str, Any]], dtype: torch.dtype) -> None:
    """Learning rates, momenta, dampenings and penalties as lanes of one run: each is bitwise its run alone."""
    start, grads = drawn(0, dtype), gradients(6, dtype)
    switches = {"nesterov": False, "maximize": True}
    lanes = {name: torch.tensor([each[name] for each in chosen], dtype=torch.float64) for name in NUMBERS}
    base = pure.sgd(0.1, momentum=0.5, **switches)

    def last(numbers: dict[str, torch.Tensor]) -> Any:
        return [*pure_path(base, start, grads, **numbers)][-1]["main"]["odd"]

    mapped = torch.func.vmap(last)(lanes)
    for lane, result in enumerate(mapped):
        assert torch.equal(result, last({name: values[lane] for name, values in lanes.items()}))


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_compiles_to_one_graph(nesterov: bool) -> None:
    """A compiled step is traced as a whole, and gives the bits of the eager one."""
    optimizer, start = pure.sgd(0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov), drawn(0, torch.float32)
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, fullgraph=True, backend="eager")
    eager = traced = (start, optimizer.init(start))
    for grads in gradients(4, torch.float32):
        eager, traced = optimizer.step(grads, eager[1], eager[0]), step(grads, traced[1], traced[0])
        assert all(map(torch.equal, _tree.leaves(eager), _tree.leaves(traced)))


def test_complex_weights_move_as_in_torch() -> None:
    """Complex parameters take the same steps as torch's."""
    start, grads = drawn(0, torch.complex128), gradients(10, torch.complex128)
    chosen: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    ours = pure_path(pure.sgd(**chosen), start, grads)
    for mine, theirs in zip(ours, torch_path(lambda p: torch.optim.SGD(p, **chosen), start, grads), strict=True):
        assert furthest(mine, theirs) < 1e-12


def test_a_penalty_of_zero_has_a_derivative() -> None:
    """The weight moves by -lr times itself per unit of penalty, also from a penalty of zero."""
    optimizer, start = pure.sgd(0.5), FrozenMap({"main": {"w": torch.tensor([2.0])}})
    grads = FrozenMap({"main": {"w": torch.tensor([1.0])}})

    def weight(penalty: torch.Tensor) -> torch.Tensor:
        state = optimizer.init(start) | {"weight_decay": penalty}
        return optimizer.step(grads, state, start)[0]["main"]["w"].sum()

    assert torch.func.grad(weight)(torch.zeros((), dtype=torch.float64)) == -1.0


def test_an_infinite_weight_without_a_penalty_stays_infinite() -> None:
    """Zero times infinity is not taken: torch does not multiply either."""
    optimizer, start = pure.sgd(0.5), FrozenMap({"main": {"w": torch.tensor([torch.inf])}})
    grads = FrozenMap({"main": {"w": torch.ones(1)}})
    assert optimizer.step(grads, optimizer.init(start), start)[0]["main"]["w"].isinf()


def test_without_momentum_there_is_nothing_to_sweep_of_it() -> None:
    """No buffer is kept, so a momentum that is set later could do nothing: it is no number of the state."""
    assert pure.sgd(0.1).hyper == ("lr", "weight_decay")
    assert pure.sgd(0.1, momentum=0.9).hyper == ("lr", "momentum", "dampening", "weight_decay")
    assert pure.sgd(lambda _: 0.1).hyper == ("weight_decay",)


@pytest.mark.parametrize("wrong", [{"momentum": 0.0}, {"momentum": 0.9, "dampening": 0.1}])
def test_nesterov_needs_a_momentum_and_no_dampening(wrong: dict[str, float]) -> None:
    """What torch refuses is refused."""
    with pytest.raises(ValueError, match="nesterov"):
        pure.sgd(0.1, nesterov=True, **wrong)
    with pytest.raises(ValueError, match="Nesterov"):
        torch.optim.SGD([torch.ones(1)], lr=0.1, nesterov=True, **wrong)


@pytest.mark.parametrize("wrong", [{"lr": -1.0}, {"momentum": -0.1}, {"weight_decay": -1.0}, {"lr": float("nan")}])
def test_a_number_out_of_bounds_is_refused(wrong: dict[str, float]) -> None:
    """A number that torch refuses, or NaN, is refused by name when the optimizer is made."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        pure.sgd(**{"lr": 0.1, **wrong})
