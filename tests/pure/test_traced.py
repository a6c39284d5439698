"""L7 and L8: the whole step is one graph over many steps, and a lane of a vmapped run equals the run alone."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor

from functrain import (
    EMA,
    Accumulate,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    Hook,
    MedianDeviation,
    MixedPrecision,
    MovingMean,
    SkipNonFinite,
    SkipSpikes,
    pure,
)
from functrain.testing.oracles import check_compiled, check_lanes

HOOKS: tuple[Hook, ...] = (
    Accumulate(every=3),
    MixedPrecision(precision="float16", growth_interval=2),
    ClipNorm(max_norm=0.5),
    ClipValue(clip_value=0.3),
    ClipAdaptive(clip=0.1),
    ClipPercentile(percentile=50.0, history=4),
    ClipZScore(warmup=2),
    SkipNonFinite(),
    SkipSpikes(by=MovingMean(ratio=3.0, warmup=2)),
    SkipSpikes(by=MedianDeviation(history=4, warmup=2), of="grad_norm", name="far"),
    EMA(decay=0.9, update_every=2),
)
SIZES = (3, 4)


def loss_fn(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the loss of a small perceptron."""
    return torch.tanh(x @ params["a"]).matmul(params["b"]).square().mean()


def start(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    """Return weights."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(SIZES, generator=generator, dtype=dtype),
        "b": torch.randn(4, generator=generator, dtype=dtype),
    }


def batches(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return batches, among them a NaN, an overflow and a spike."""
    generator = torch.Generator().manual_seed(1)
    found = [torch.randn(5, 3, generator=generator, dtype=dtype) for _ in range(count)]
    for place, factor in ((4, float("nan")), (10, 1e30), (13, 50.0), (20, float("inf"))):
        if place < count:
            found[place] = found[place] * factor
    return found


def test_l7_one_graph_over_fifty_steps() -> None:
    """One graph serves 50 steps with windows, drops, vetoes and overflows, and gives what the eager step gives."""
    some = [hook for hook in HOOKS if hook.name in {"accumulate", "precision", "clip", "finite", "spikes", "ema"}]
    init, step, _ = pure.train_step(loss_fn, pure.adamw(1e-2), some)
    check_compiled(step, init(start()), batches(50))


def test_the_fifty_steps_step_and_skip() -> None:
    """The batches that the graph is tried on make it do both."""
    some = [hook for hook in HOOKS if hook.name in {"accumulate", "precision", "clip", "finite", "spikes", "ema"}]
    init, step, _ = pure.train_step(loss_fn, pure.adamw(1e-2), some)
    state = reduce(step, batches(50), init(start()))
    assert (int(state.clock.skipped) > 0, int(state.clock.step) > 0) == (True, True)


def lanes_equal_lone_runs(hooks: Any, optimizer: Any, dtype: torch.dtype) -> None:
    """Run three lanes together and alone, and compare after every batch: decisions exactly, numbers closely."""
    init, step, _ = pure.train_step(loss_fn, optimizer, hooks)
    check_lanes(step, [init(start(dtype, seed)) for seed in range(3)], batches(11, dtype))


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.name)
def test_l8_each_hook_in_lanes(hook: Hook) -> None:
    """Lane by lane a vmapped run with this hook equals the run of the lane alone, to 1e-12 in float64."""
    lanes_equal_lone_runs(hook, pure.sgd(0.05, momentum=0.9), torch.float64)


def test_l8_all_hooks_in_lanes() -> None:
    """The same holds for all hooks together in float32, to 1e-5."""
    lanes_equal_lone_runs(HOOKS, pure.adamw(1e-2), torch.float32)
