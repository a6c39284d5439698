"""Schedules: beside ``LambdaLR``, in lanes, compiled, and counted in executed steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from functrain import SkipNonFinite, pure
from functrain._tree import FrozenMap
from tests.pure.optimizing import drawn, furthest, gradients, pure_path

KINDS: tuple[tuple[Any, Any], ...] = (
    (pure.sgd, torch.optim.SGD),
    (pure.adam, torch.optim.Adam),
    (pure.adamw, torch.optim.AdamW),
)


def scheduled_path(kind: Any, schedule: Any, start: Any, grads: list[Any]) -> Any:
    """Yield the parameters after each step of an optimizer of torch under a ``LambdaLR``."""
    held = {name: torch.nn.Parameter(leaf.clone()) for name, leaf in start["main"].items()}
    optimizer = kind(held.values(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(schedule(torch.tensor(step))))
    for each in grads:
        for name, leaf in held.items():
            leaf.grad = each["main"][name].clone()
        optimizer.step()
        scheduler.step()
        yield FrozenMap({"main": {name: leaf.detach().clone() for name, leaf in held.items()}})


@pytest.mark.parametrize("kind", KINDS)
@given(peak=st.floats(1e-4, 0.5), warmup=st.integers(0, 30), rest=st.integers(0, 30), floor=st.floats(0.0, 1e-4))
def test_fifty_scheduled_steps_are_those_of_torch(
    kind: tuple[Any, Any], peak: float, warmup: int, rest: int, floor: float
) -> None:
    """The rate of each step is the one that ``LambdaLR`` with the same function sets before it."""
    schedule = pure.warmup_cosine(peak, warmup, warmup + rest, floor)
    start, grads = drawn(0, torch.float64), gradients(50, torch.float64)
    theirs_path = scheduled_path(kind[1], schedule, start, grads)
    for mine, theirs in zip(pure_path(kind[0](schedule), start, grads), theirs_path, strict=True):
        assert furthest(mine, theirs) < 1e-12


@given(peak=st.floats(1e-4, 1.0), warmup=st.integers(1, 50), rest=st.integers(1, 50), floor=st.floats(0.0, 1e-4))
def test_the_rate_rises_to_the_peak_and_falls_to_the_floor(peak: float, warmup: int, rest: int, floor: float) -> None:
    """It rises in equal strides, never leaves the bounds, falls without a rise, and stays at the floor."""
    schedule = pure.warmup_cosine(peak, warmup, warmup + rest, floor)
    rates = torch.stack([schedule(torch.tensor(step)) for step in range(warmup + rest + 5)])
    assert torch.allclose(rates[:warmup], peak * torch.arange(1, warmup + 1).double() / warmup)
    assert (rates[warmup - 1 :].diff() <= 1e-15 * peak).all()
    assert torch.allclose(rates[warmup + rest :], torch.tensor(floor).double(), atol=1e-12)


@pytest.mark.parametrize(("warmup", "total"), [(-1, 5), (6, 5)])
def test_a_warmup_outside_the_run_is_refused(warmup: int, total: int) -> None:
    """A rise of fewer than no steps, or of more than there are, is refused."""
    with pytest.raises(ValueError, match="warmup"):
        pure.warmup_cosine(1.0, warmup, total)


def test_a_schedule_of_python_numbers_works() -> None:
    """A function that gives a Python number is as good as one that gives a tensor."""
    start, grads = drawn(0, torch.float64), gradients(3, torch.float64)
    constant, number = pure.sgd(lambda _: 0.25), pure.sgd(0.25)
    for left, right in zip(pure_path(constant, start, grads), pure_path(number, start, grads), strict=True):
        assert torch.equal(left["main"]["odd"], right["main"]["odd"])


def loss_fn(params: dict[str, Tensor], buffers: dict[str, Tensor], slope: Tensor) -> Tensor:
    """Return a loss whose gradient is the slope."""
    return (params["w"] * slope).sum()


def test_the_count_is_of_executed_steps() -> None:
    """A vetoed step does not advance the schedule: the next one takes the rate that was due."""
    init, step, _ = pure.train_step(loss_fn, pure.sgd(lambda count: 10.0**-count), SkipNonFinite())
    state = init({"w": torch.zeros((), dtype=torch.float64)})
    for slope in (1.0, float("nan"), 1.0):
        state = step(state, torch.tensor(slope, dtype=torch.float64))
    assert float(state.params["main"]["w"]) == pytest.approx(-1.1)


def test_a_scheduled_step_compiles_and_maps_over_lanes() -> None:
    """Lanes that have come to other counts take other rates; the compiled run gives the bits of the eager one."""
    optimizer = pure.sgd(pure.warmup_cosine(1.0, 2, 4))
    start, grads = (FrozenMap({"main": {"w": torch.tensor([value])}}) for value in (0.0, 1.0))

    def moved(count: Tensor) -> Tensor:
        return optimizer.step(grads, optimizer.init(start) | {"step": count}, start)[0]["main"]["w"]

    counts = torch.arange(5)
    torch._dynamo.reset()
    mapped = torch.func.vmap(moved)(counts)
    assert torch.equal(mapped, torch.stack([moved(count) for count in counts]))
    assert torch.equal(mapped, torch.compile(torch.func.vmap(moved), fullgraph=True, backend="eager")(counts))
    assert torch.allclose(mapped.flatten(), torch.tensor([-0.5, -1.0, -1.0, -0.5, 0.0]))
