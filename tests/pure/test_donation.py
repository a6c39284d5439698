"""L14 in the engine: a donated step gives what an undonated one gives, in the storage that it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from functrain import EMA, Accumulate, ClipNorm, MixedPrecision, SkipNonFinite, Stage, TrainState, _tree, hook, pure

HOOKS = (
    Accumulate(every=2),
    MixedPrecision(precision="float16", init_scale=4.0),
    ClipNorm(max_norm=1.0),
    SkipNonFinite(),
    EMA(decay=0.5),
)


def loss_fn(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a loss, and a count of calls as a buffer."""
    return (params["w"] * x).sum() + params["b"].square().sum(), {"calls": buffers["calls"] + 1}


def begun(hooks: Any, **options: Any) -> tuple[pure.TrainStep, TrainState]:
    """Return a run and its first state."""
    run = pure.train_step(loss_fn, pure.adamw(0.1, amsgrad=True), hooks, **options)
    return run, run.init({"w": torch.ones(3), "b": torch.ones(2)}, {"calls": torch.zeros(())})


def batches() -> list[Tensor]:
    """Return batches, two of them poisoned."""
    found = [torch.full((3,), float(place)) for place in range(1, 8)]
    return [*found[:3], found[3] * float("nan"), found[4], found[5] * float("inf"), found[6]]


def values(state: TrainState) -> list[Any]:
    """Return copies of all leaves."""
    return [leaf.clone() for leaf in _tree.leaves(state)]


def assert_equal(left: list[Tensor], right: list[Tensor]) -> None:
    """Compare leaf by leaf, bitwise."""
    assert all(torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0)) for a, b in zip(left, right, strict=True))


def as_it_is(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step uncompiled."""
    return step


def compiled(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step compiled."""
    return torch.compile(step, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("wrap", [as_it_is, compiled])
def test_l14_a_donated_step_gives_the_same(wrap: Callable[..., Any]) -> None:
    """Through overflows, drops, windows and a flush the donated run is bitwise the other one."""
    run, kept = begun(HOOKS)
    given, step = run.init({"w": torch.ones(3), "b": torch.ones(2)}, {"calls": torch.zeros(())}), wrap(run.step)
    given = given.replace(donated=True)
    for batch in batches():
        kept, given = run.step(kept, batch), step(given, batch)
        assert given.donated
        assert_equal(values(kept), values(given))
    assert_equal(values(run.flush(kept)), values(run.flush(given)))


@pytest.mark.parametrize("wrap", [as_it_is, compiled])
def test_the_storage_stays(wrap: Callable[..., Any]) -> None:
    """The tensors that come back are the ones that went in, and all are of one storage each."""
    run, state = begun(HOOKS)
    step, state = wrap(run.step), state.replace(donated=True)
    before = [leaf.data_ptr() for leaf in _tree.leaves(state)]
    for batch in batches():
        state = step(state, batch)
    assert [leaf.data_ptr() for leaf in _tree.leaves(state)] == before
    assert len(set(before)) == len(before)


def test_lanes_are_donated_too() -> None:
    """A vmapped donated step writes into the stacked state, and equals the undonated one."""
    run, state = begun(HOOKS)
    kept = _tree.map_leaves(lambda leaf: torch.stack([leaf, leaf]), state)
    given = _tree.map_leaves(torch.clone, kept).replace(donated=True)
    before = [leaf.data_ptr() for leaf in _tree.leaves(given)]
    step = torch.func.vmap(run.step, in_dims=(0, None))
    for batch in batches():
        kept, given = step(kept, batch), step(given, batch)
    assert_equal(values(kept), values(given))
    assert [leaf.data_ptr() for leaf in _tree.leaves(step(given, batches()[0]))] == before


def previous(state: TrainState, stage: Stage, will_skip: Any) -> Any:
    """Hand weights on as they are, one name to the left: what is written first must not be read afterwards."""
    slot = state.hooks["previous"]
    moved = state.with_slot("previous", slot | {"older": slot["old"].detach(), "old": state.params["main"]["w"]})
    return moved, True, state.loss


def test_a_leaf_may_move_to_another_place() -> None:
    """A hook that keeps the weights of the last two steps gets them, though their storage is written over."""
    keeping = hook(
        previous,
        stages={Stage.BEFORE_BATCH},
        name="previous",
        init=lambda state: {name: state.params["main"]["w"].clone() for name in ("old", "older")},
    )
    run, state = begun(keeping)
    state, seen = state.replace(donated=True), [torch.ones(3)]
    for batch in batches()[:3]:
        state = run.step(state, batch)
        seen.append(state.params["main"]["w"].clone())
    assert torch.equal(state.hooks["previous"]["old"], seen[-2])
    assert torch.equal(state.hooks["previous"]["older"], seen[-3])


def test_donated_and_differentiable_is_refused() -> None:
    """What the backward needs cannot be overwritten: the error says what to do, and nothing was written."""
    run, state = begun(ClipNorm(max_norm=1.0), differentiable=True)
    before = values(state)
    for call in (lambda given: run.step(given, torch.ones(3)), run.flush):
        with pytest.raises(ValueError, match=r"state.replace\(donated=False\)"):
            call(state.replace(donated=True))
    assert_equal(values(state), before)
