"""A small perceptron, batches with something wrong in them, and the loop that a sweep must equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from functrain import ClipNorm, TrainState, _tree, pure

EXACT = (torch.bool, torch.int64)


def loss_fn(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, rng: pure.Noise) -> Tensor:
    """Return the loss of a small perceptron with dropout."""
    hidden = torch.tanh(x @ params["a"])
    return (hidden * rng.keep(hidden.shape, 0.8)).matmul(params["b"]).square().mean()


def weights(seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return weights that only the seed decides."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 4, generator=generator, dtype=dtype),
        "b": torch.randn(4, generator=generator, dtype=dtype),
    }


def batches(count: int, dtype: torch.dtype = torch.float64, spoiled: Mapping[int, float] | None = None) -> list[Tensor]:
    """Return batches, some of them multiplied by what spoils them."""
    generator = torch.Generator().manual_seed(1)
    found = [torch.randn(5, 3, generator=generator, dtype=dtype) for _ in range(count)]
    return [batch * (spoiled or {}).get(place, 1.0) for place, batch in enumerate(found)]


def alone(run: pure.TrainStep, state: TrainState, fed: Iterable[Tensor], *, flushes: bool = False) -> TrainState:
    """Return the state of one run after its batches."""
    for batch in fed:
        state = run.step(state, batch)
    return run.flush(state) if flushes else state


def different(a: TrainState, b: TrainState, tolerance: float) -> list[str]:
    """Return the paths at which two states differ: flags and counters at all, numbers by more than a tolerance."""
    ours, theirs = _tree.paths(a), _tree.paths(b)
    assert ours.keys() == theirs.keys()
    return [path for path in ours if not alike(ours[path], theirs[path], tolerance)]


def alike(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Compare two leaves."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if a.dtype in EXACT:
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def tiny(hooks: Any = (), lr: float = 0.1) -> pure.TrainStep:
    """Return a run of one weight that is pulled to what a batch holds; a batch of NaN makes the loss NaN."""
    return pure.train_step(lambda params, _, x: (params["w"] - x).square(), pure.sgd(lr), [*hooks])


def swept(run: pure.TrainStep, over: Any, fed: Iterable[Any], **options: Any) -> pure.SweepTable:
    """Sweep a run of one weight that starts at 0, uncompiled and without a bar."""
    start = {"params": {"w": torch.zeros((), dtype=torch.float64)}, "progress": False, "compile": False}
    return pure.sweep(run.init, run.step, over=over, batches=fed, **(start | options))


def clipped() -> pure.TrainStep:
    """Return a run of one weight whose gradient is clipped."""
    return tiny([ClipNorm(max_norm=1.0)])
