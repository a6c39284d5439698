"""L8 through the compiler: a lane of a compiled sweep equals the eager run that was configured so, alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from functrain import EMA, Accumulate, ClipNorm, MovingMean, SkipNonFinite, SkipSpikes, TrainState, pure
from tests.pure.sweeping import alone, batches, different, loss_fn, weights

OVER = {"lr": [0.01, 0.1, 0.5], "hooks.clip.max_norm": [0.05, 0.5, float("inf")], "seed": [0, 7]}
OPTIMIZERS: dict[str, Callable[[float], pure.Optimizer]] = {
    "sgd": lambda lr: pure.sgd(lr, momentum=0.9, weight_decay=0.01),
    "adamw": pure.adamw,
}
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def run_of(kind: str, lr: float, max_norm: float) -> pure.TrainStep:
    """Return a run that accumulates, clips, drops, vetoes and averages."""
    hooks = [
        Accumulate(every=2),
        ClipNorm(max_norm=max_norm),
        SkipNonFinite(),
        SkipSpikes(by=MovingMean(ratio=2.0, warmup=2)),
        EMA(decay=0.9),
    ]
    return pure.train_step(loss_fn, OPTIMIZERS[kind](lr), hooks)


@cache
def fed() -> list[torch.Tensor]:
    """Return batches in float32, among them a NaN, a spike and an overflow."""
    return batches(13, torch.float32, {3: float("nan"), 5: 40.0, 9: float("inf")})


def lone_runs(kind: str) -> list[TrainState]:
    """Return where the loop over all lanes ends, each run eagerly and for itself."""
    found: list[TrainState] = []
    for lane in pure.grid(OVER):
        run = run_of(kind, lane["lr"], lane["hooks.clip.max_norm"])
        state = run.init(weights(lane["seed"], torch.float32), seed=lane["seed"])
        found.append(alone(run, state, fed(), flushes=True))
    return found


def lanes_equal_lone_runs(kind: str, **options: Any) -> None:
    """Compare all lanes of a compiled sweep with the loop: decisions and counters exactly, numbers to 1e-5."""
    torch._dynamo.reset()
    run = run_of(kind, 1.0, 1.0)

    def init(seed: int) -> TrainState:
        return run.init(weights(seed, torch.float32), seed=seed)

    table = pure.sweep(init, run.step, over=OVER, batches=fed(), flush=run.flush, progress=False, **options)
    expected = lone_runs(kind)
    assert len(table) == len(expected) == 18
    for lane, state in enumerate(expected):
        assert different(table.state(lane), state, 1e-5) == [], table.rows[lane]
        assert table.rows[lane]["skips"] == state.clock.skipped
    assert len({int(state.clock.skipped) for state in expected}) > 2
    assert len({float(state.raw_loss) for state in expected}) == 18


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_traced_lanes_equal_lone_runs(kind: str) -> None:
    """Learning rate by clip threshold by seed, in chunks of seven and through AOT autograd."""
    lanes_equal_lone_runs(kind, max_lanes=7, compile={"backend": "aot_eager"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # Inductor's own
@pytest.mark.skipif(not THOROUGH, reason="compiling with Inductor takes minutes; HYPOTHESIS_PROFILE=thorough does it")
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_compiled_lanes_equal_lone_runs(kind: str) -> None:
    """The same through Inductor."""
    lanes_equal_lone_runs(kind, compile=True)
