"""Small training runs for oracles and machines, and hooks with drawn configuration for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import functrain
from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    FixedLimit,
    MixedPrecision,
    MovingMean,
    SkipNonFinite,
    SkipSpikes,
    Stage,
    TrainState,
)
from functrain.testing.training import Training


def sgd(params: Any) -> torch.optim.Optimizer:
    """Return SGD with momentum, which goes on where it is called on a skip."""
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def adamw(params: Any) -> torch.optim.Optimizer:
    """Return AdamW."""
    return torch.optim.AdamW(params, lr=0.01)


def perceptron() -> nn.Module:
    """Return a small network."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def normed() -> nn.Module:
    """Return a network with running statistics."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def mean_square(model: Any, x: Tensor) -> Tensor:
    """Return a loss that is small for small outputs."""
    return model(x).square().mean()


def pair() -> dict[str, nn.Module]:
    """Return two networks."""
    return {"teacher": perceptron(), "student": normed()}


def pair_loss(models: Any, x: Tensor) -> Tensor:
    """Return the sum of the two losses."""
    return mean_square(models["teacher"], x) + mean_square(models["student"], x)


def sgd_each(models: Any) -> dict[str, torch.optim.Optimizer]:
    """Return an optimizer for each network."""
    return {key: sgd(each.parameters()) for key, each in models.items()}


def batches(count: int = 6, size: int = 4) -> list[Tensor]:
    """Return micro-batches."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, 3, generator=generator) for _ in range(count)]


def training(*hooks: Any, optimizer: Callable[[Any], Any] = sgd, model: Callable[[], Any] = perceptron) -> Training:
    """Return a run with these hooks."""
    return Training(model, mean_square, optimizer, batches(), hooks)


def counted_outside() -> Any:
    """Return a hook that counts on itself, not in its slot, and doubles every fourth loss."""
    calls: list[int] = []

    def count(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        calls.append(1)
        return state, True, state.loss * (1.0 if len(calls) % 4 else 2.0)

    return functrain.hook(count, stages=Stage.DO_BACKWARD)


ALL: tuple[st.SearchStrategy[Any], ...] = (
    st.builds(Accumulate, every=st.integers(1, 3), partial=st.sampled_from(["flush", "carry", "drop"])),
    st.builds(
        MixedPrecision,
        precision=st.just("fp16"),
        init_scale=st.sampled_from([4.0, 65536.0]),
        growth_interval=st.integers(1, 3),
    ),
    st.builds(ClipNorm, max_norm=st.sampled_from([0.1, 1.0, float("inf")])),
    st.builds(SkipNonFinite, drop=st.booleans(), max_consecutive=st.sampled_from([None, 0, 2])),
    st.builds(
        SkipSpikes,
        by=st.sampled_from([FixedLimit(limit=50.0), MovingMean(ratio=3.0, warmup=1)]),
        of=st.sampled_from(["loss", "grad_norm"]),
    ),
    st.builds(EMA, decay=st.sampled_from([0.0, 0.5, 0.99]), update_every=st.integers(1, 2), use_buffers=st.booleans()),
)
"""Every family of the library, with drawn configuration."""


def full_pipelines() -> st.SearchStrategy[list[Any]]:
    """Return a strategy for pipelines of all these families."""
    return st.tuples(*ALL).map(list)


def partial_pipelines() -> st.SearchStrategy[list[Any]]:
    """Return a strategy for pipelines of some of these families."""
    return st.tuples(*(st.none() | each for each in ALL)).map(lambda drawn: [each for each in drawn if each])
