"""A lane of a sweep equals the run of that lane alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from functrain import EMA, Accumulate, ClipNorm, FixedLimit, MovingMean, SkipNonFinite, SkipSpikes, pure
from tests.pure.sweeping import alone, batches, different, loss_fn, swept, tiny, weights

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
SPOILED = {3: float("nan"), 5: 40.0, 9: float("inf")}


def hooks(max_norm: float = 1.0, ratio: float = 2.0, decay: float = 0.9) -> list[Any]:
    """Return hooks that clip, drop, veto, wait and average."""
    return [
        Accumulate(every=2),
        ClipNorm(max_norm=max_norm),
        SkipNonFinite(),
        SkipSpikes(by=MovingMean(ratio=ratio, warmup=2)),
        EMA(decay=decay),
    ]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("optimizer", [pure.sgd, pure.adamw])
def test_a_sweep_over_seeds_is_the_loop_over_seeds(optimizer: Any, dtype: torch.dtype) -> None:
    """Weights, dropout, spikes and vetoes of every seed are those of a run that never heard of lanes."""
    run = pure.train_step(loss_fn, optimizer(0.05), hooks())

    def init(seed: int) -> Any:
        return run.init(weights(seed, dtype), seed=seed)

    fed, seeds = batches(13, dtype, SPOILED), [0, 1, 5, 2**31]
    table = pure.sweep(
        init, run.step, over={"seed": seeds}, batches=fed, flush=run.flush, progress=False, compile=False
    )
    for lane, seed in enumerate(seeds):
        expected = alone(run, init(seed), fed, flushes=True)
        assert different(table.state(lane), expected, TOLERANCE[dtype]) == []
        assert table.rows[lane]["skips"] == expected.clock.skipped > 0
    assert table.state(0).raw_loss != table.state(1).raw_loss


LANES = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-3, 0.5),
        "weight_decay": st.floats(0, 0.5),
        "hooks.clip.max_norm": st.floats(0, 3.0),
        "hooks.spikes.statistic.ratio": st.floats(1.1, 4.0),
        "hooks.ema.decay": st.floats(0, 0.99),
    }
)


@given(st.lists(LANES, min_size=1, max_size=3), st.none() | st.integers(1, 3))
def test_a_lane_is_the_run_that_was_configured_so(lanes: list[dict[str, float]], max_lanes: int | None) -> None:
    """Numbers of the optimizer and of hooks do in a lane what they do in a constructor, in chunks of any size."""
    run, fed = pure.train_step(loss_fn, pure.sgd(1.0), hooks()), batches(7, spoiled=SPOILED)
    init = partial(run.init, weights())
    table = pure.sweep(init, run.step, over=lanes, batches=fed, max_lanes=max_lanes, progress=False, compile=False)
    assert len(table) == len(lanes)
    for place, lane in enumerate(lanes):
        configured = hooks(lane["hooks.clip.max_norm"], lane["hooks.spikes.statistic.ratio"], lane["hooks.ema.decay"])
        single = pure.train_step(loss_fn, pure.sgd(lane["lr"], weight_decay=lane["weight_decay"]), configured)
        expected = alone(single, single.init(weights()), fed)
        assert different(table.state(place), expected, 1e-12) == []


def test_swept_numbers_reach_the_optimizer() -> None:
    """One step of SGD on a slope of 2: the weight has moved by twice the learning rate."""
    table = swept(tiny(), {"lr": [0.0, 0.25, 0.5]}, [torch.tensor(1.0)])
    assert [float(table.state(lane).params["main"]["w"]) for lane in range(3)] == [0.0, 0.5, 1.0]
    assert table.states.hyper["main"]["0"]["lr"].tolist() == [0.0, 0.25, 0.5]


def test_each_optimizer_of_several_is_addressed_by_its_key() -> None:
    """Two optimizers: each learning rate moves its own weight, and a bare "lr" names no one."""
    parts = {"slow": (pure.sgd(0.1), "a"), "fast": (pure.sgd(0.1), "b")}
    run = pure.train_step(lambda params, _, x: (params["a"] + params["b"]) * x, parts, [])
    options = {"params": {"a": torch.zeros(()), "b": torch.zeros(())}, "batches": [torch.ones(())]}
    over: Any = pure.grid({"opt.slow.lr": [0.5], "opt.fast.lr": [1.0, 2.0]})
    table = pure.sweep(run.init, run.step, over=over, progress=False, compile=False, **options)
    moved = [(float(params["a"]), float(params["b"])) for params in (table.state(i).params["main"] for i in range(2))]
    assert moved == [(-0.5, -1.0), (-0.5, -2.0)]
    with pytest.raises(KeyError, match=r"opt\.fast\.lr"):
        pure.sweep(run.init, run.step, over={"lr": [0.1]}, **options)


def test_epochs_flush_partial_windows() -> None:
    """Three batches in windows of two: each epoch makes two steps, and the clock counts epochs."""
    run = tiny([Accumulate(every=2)])
    table = swept(run, {"lr": [0.1, 0.2]}, [torch.ones(())] * 3, flush=run.flush, epochs=2)
    assert table.column("steps") == [4, 4]
    assert table.states.clock.epoch.tolist() == [2, 2]
    assert table.losses.shape == (2, 6)


def test_windows_may_differ_between_lanes() -> None:
    """The length of a window is a number like any other: lanes step at different batches."""
    table = swept(tiny([Accumulate(every=2)]), {"hooks.accumulate.every": [1, 2, 3]}, [torch.ones(())] * 6)
    assert table.column("steps") == [6, 3, 2]


def test_every_lane_sees_the_batches_of_a_generator() -> None:
    """Batches are read once, also in chunks: an iterator will do."""
    fed = (torch.full((), float(value)) for value in (1, 2, 3))
    table = swept(tiny(), {"lr": [0.5] * 5}, fed, max_lanes=2)
    assert [float(table.state(lane).params["main"]["w"]) for lane in range(5)] == [3.0] * 5


def test_max_lanes_bounds_how_many_run_at_once() -> None:
    """Seven lanes, at most three at once: three chunks of three, of which the last is filled up."""
    sizes: list[int] = []

    def step(state: Any, batch: Any) -> Any:
        level = torch._C._functorch.get_unwrapped(state.rng)
        sizes.append(len(level))
        return run.step(state, batch)

    run = tiny()
    rates = [0.1 * lane for lane in range(7)]
    table = swept(run._replace(step=step), {"lr": rates}, [torch.ones(())], max_lanes=3)
    assert sizes == [3, 3, 3]
    assert table.column("lr") == rates


def test_a_seed_that_is_not_swept_is_left_to_init() -> None:
    """A partial keeps its own seed; an init that asks for one gets 0."""
    run = tiny()
    start = {"w": torch.zeros(())}
    inits: list[Any] = [partial(run.init, start, seed=7), lambda seed: run.init(start, seed=seed)]
    fed, options = [torch.ones(())], {"progress": False, "compile": False}
    tables = [pure.sweep(init, run.step, over={"lr": [0.1]}, batches=fed, **options) for init in inits]
    assert [int(table.state(0).rng) for table in tables] == [7, 0]


@pytest.mark.slow
def test_a_compiled_sweep_is_one_graph_with_the_same_numbers() -> None:
    """All chunks and batches, vetoes among them, run in one graph, and nothing depends on it."""
    hooked = [ClipNorm(max_norm=1.0), SkipNonFinite(), SkipSpikes(by=FixedLimit(limit=50.0))]
    fed, over = [torch.tensor(x) for x in (1.0, float("nan"), 100.0, 2.0)], {"lr": [0.1, 0.2, 0.3]}
    counter = CompileCounter()
    compiled = swept(tiny(hooked), over, fed, max_lanes=2, compile={"backend": counter})
    plain = swept(tiny(hooked), over, fed)
    assert counter.frame_count == 1
    assert compiled.column("skips") == plain.column("skips") == [2, 2, 2]
    assert all(different(compiled.state(lane), plain.state(lane), 1e-12) == [] for lane in range(3))
