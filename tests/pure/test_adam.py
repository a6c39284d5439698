"""Adam and AdamW beside ``torch.optim``: every option, to 1e-12, in every form of run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import _tree, pure
from tests.pure.optimizing import drawn, furthest, gradients, pure_path, torch_path, torch_step, ulps

KINDS: tuple[tuple[Any, Any], ...] = ((pure.adam, torch.optim.Adam), (pure.adamw, torch.optim.AdamW))
NUMBERS = ("lr", "beta1", "beta2", "eps", "weight_decay")


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """Return options of Adam."""
    return {
        "lr": draw(st.floats(0.0, 0.5)),
        "betas": (draw(st.just(0.0) | st.floats(0.1, 0.99)), draw(st.just(0.0) | st.floats(0.5, 0.9999))),
        "eps": draw(st.floats(1e-10, 1e-2)),
        "weight_decay": draw(st.just(0.0) | st.floats(1e-6, 0.5)),
        "amsgrad": draw(st.booleans()),
        "maximize": draw(st.booleans()),
    }


@pytest.mark.parametrize("kind", KINDS)
@given(chosen=options(), seed=st.integers(0, 2**16))
def test_fifty_steps_are_those_of_torch(kind: tuple[Any, Any], chosen: dict[str, Any], seed: int) -> None:
    """Any options: after each of 50 steps in double every parameter is within 1e-12."""
    start, grads = drawn(seed, torch.float64), gradients(50, torch.float64, seed)
    ours = pure_path(kind[0](**chosen), start, grads)
    for mine, theirs in zip(ours, torch_path(lambda p: kind[1](p, **chosen), start, grads), strict=True):
        assert furthest(mine, theirs) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@given(
    chosen=options(),
    seed=st.integers(0, 2**16),
    count=st.sampled_from([0, 1, 2, 7, 1000, 10**5]),
    magnitudes=st.tuples(st.integers(-25, 8), st.integers(-38, 10), st.integers(-25, 12)),
)
def test_one_step_in_single_precision_is_within_two_ulp(
    kind: tuple[Any, Any], chosen: dict[str, Any], seed: int, count: int, magnitudes: tuple[int, int, int]
) -> None:
    """From any one state in float32 a step gives weights and averages at most two units in the last place away."""
    start, grad = drawn(seed, torch.float32), drawn(seed + 1, torch.float32, 10.0 ** magnitudes[2])
    mean, square = (drawn(seed + 2 + at, torch.float32, 10.0 ** magnitudes[at]) for at in (0, 1))
    square = _tree.map_leaves(torch.abs, square)
    if not count:
        mean, square = (_tree.map_leaves(torch.zeros_like, tree) for tree in (mean, square))
    kept = {"exp_avg": mean, "exp_avg_sq": square} | ({"max_exp_avg_sq": square} if chosen["amsgrad"] else {})
    optimizer = kind[0](**chosen)
    params, state = optimizer.step(grad, optimizer.init(start) | kept | {"step": torch.tensor(count)}, start)
    theirs = torch_step(lambda p: kind[1](p, **chosen), start, grad, kept, count)
    for name, before in {"params": start, **kept}.items():
        ours = params if name == "params" else state[name]
        for leaf, expected in theirs[name]["main"].items():
            assert ulps(ours["main"][leaf], expected, before["main"][leaf]) <= 2, (name, leaf)


@pytest.mark.parametrize("amsgrad", [False, True])
@given(chosen=st.lists(options(), min_size=2, max_size=4))
def test_lanes_of_numbers_are_runs_alone(amsgrad: bool, chosen: list[dict[str, Any]]) -> None:
    """All five numbers as lanes of one run: each lane is within 1e-12 of its run alone."""
    start, grads = drawn(0, torch.float64), gradients(6, torch.float64)
    rows = [{**each, "beta1": each["betas"][0], "beta2": each["betas"][1]} for each in chosen]
    lanes = {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in NUMBERS}

    def last(numbers: dict[str, torch.Tensor]) -> Any:
        return [*pure_path(pure.adamw(amsgrad=amsgrad), start, grads, **numbers)][-1]

    mapped = torch.func.vmap(last)(lanes)
    for lane in range(len(rows)):
        alone = last({name: values[lane] for name, values in lanes.items()})
        assert furthest(_tree.map_leaves(lambda leaf, at=lane: leaf[at], mapped), alone) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_step_compiles_to_one_graph(kind: tuple[Any, Any], amsgrad: bool) -> None:
    """A compiled step is traced as a whole, and gives the bits of the eager one."""
    optimizer, start = kind[0](1e-2, weight_decay=0.1, amsgrad=amsgrad), drawn(0, torch.float32)
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, fullgraph=True, backend="eager")
    eager = traced = (start, optimizer.init(start))
    for grads in gradients(4, torch.float32):
        eager, traced = optimizer.step(grads, eager[1], eager[0]), step(grads, traced[1], traced[0])
        assert all(map(torch.equal, _tree.leaves(eager), _tree.leaves(traced)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_complex_weights_move_as_in_torch(kind: tuple[Any, Any], amsgrad: bool) -> None:
    """Real and imaginary parts have averages of their own, as torch's have."""
    start, grads = drawn(0, torch.complex128), gradients(10, torch.complex128)
    chosen: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "amsgrad": amsgrad}
    ours = pure_path(kind[0](**chosen), start, grads)
    for mine, theirs in zip(ours, torch_path(lambda p: kind[1](p, **chosen), start, grads), strict=True):
        assert furthest(mine, theirs) < 1e-12


def test_the_state_holds_what_torch_keeps() -> None:
    """Count, averages and, with amsgrad, the largest average are those of torch's own state."""
    start, grads = drawn(0, torch.float64), gradients(3, torch.float64)
    leaf = torch.nn.Parameter(start["main"]["odd"].clone())
    theirs = torch.optim.Adam([leaf], amsgrad=True)
    ours = pure.adam(amsgrad=True)
    params, state = start, ours.init(start)
    for each in grads:
        leaf.grad = each["main"]["odd"].clone()
        theirs.step()
        params, state = ours.step(each, state, params)
    kept = theirs.state[leaf]
    assert int(state["step"]) == int(kept["step"]) == 3
    for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        assert torch.allclose(state[name]["main"]["odd"], kept[name], rtol=1e-12, atol=0.0)


WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lr", {"lr": -1.0}),
    ("beta1", {"betas": (1.0, 0.9)}),
    ("beta2", {"betas": (0.9, -0.1)}),
    ("eps", {"eps": float("nan")}),
    ("weight_decay", {"weight_decay": "0.1"}),
)


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_number_out_of_bounds_is_refused(name: str, wrong: dict[str, Any]) -> None:
    """What is no number from 0 on, or a beta of 1, is refused by name when the optimizer is made."""
    with pytest.raises(ValueError, match=name):
        pure.adamw(**wrong)
