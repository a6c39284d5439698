"""Drawn pipelines of library hooks, and runs with overflows, spikes, NaN, dropped micro-batches and flushes in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

import functrain
from functrain import (
    EMA,
    Accumulate,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    FixedLimit,
    MedianDeviation,
    MixedPrecision,
    MovingMean,
    Shell,
    SkipNonFinite,
    SkipSpikes,
    TrainState,
)

FREE: Any = {"max_consecutive": None}
RULES = [
    FixedLimit(limit=50.0),
    MovingMean(ratio=3.0, warmup=1),
    MedianDeviation(deviations=4.0, history=4, warmup=2),
]
CLIPS = [
    ClipNorm(max_norm=0.5),
    ClipNorm(max_norm=float("inf"), norm_type=1.0),
    ClipValue(clip_value=0.1),
    ClipAdaptive(clip=0.05),
    ClipPercentile(percentile=50.0, history=3),
    ClipZScore(z=1.5, alpha=0.5, warmup=2),
]

accumulations = st.builds(Accumulate, every=st.integers(1, 3), partial=st.sampled_from(["flush", "carry", "drop"]))
precisions = st.builds(
    MixedPrecision,
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    init_scale=st.sampled_from([4.0, 1024.0]),
    growth_interval=st.integers(1, 3),
    max_consecutive=st.none(),
)
clips = st.sampled_from(
    [*CLIPS, functrain.every(2, ClipNorm(max_norm=0.5)), functrain.on("0.*", ClipNorm(max_norm=0.5))]
)
guards = st.builds(SkipNonFinite, drop=st.booleans(), **{name: st.none() for name in FREE})
spikes = st.builds(
    SkipSpikes, by=st.sampled_from(RULES), of=st.sampled_from(["loss", "grad_norm"]), max_consecutive=st.none()
)
spikes |= st.builds(SkipSpikes, by=st.sampled_from(RULES), drop=st.booleans(), max_consecutive=st.none())
averages = st.builds(
    EMA,
    decay=st.sampled_from([0.0, 0.5, 0.99]),
    update_every=st.integers(1, 2),
    start_step=st.integers(0, 3),
    use_buffers=st.booleans(),
)


@functrain.hook(init=lambda _state: {"count": 0, "sum": torch.zeros((), dtype=torch.float64)})
def tally(state: TrainState, stage: Any, _skip: Any) -> Any:
    """Count its calls and add up losses: a user's own slot."""
    slot = state.hooks["tally"]
    seen = torch.nan_to_num(state.raw_loss.detach().double())
    return state.with_slot("tally", slot | {"count": slot["count"] + 1, "sum": slot["sum"] + seen}), True, state.loss


@st.composite
def pipelines(draw: st.DrawFn) -> Any:
    """Draw a pipeline: any subset of the families, and a hook of the user's own."""
    families = [accumulations, precisions, clips, guards, spikes, averages, st.just(tally)]
    return functrain.fold(*(draw(family) for family in families if draw(st.booleans())))


KINDS = ["plain"] * 5 + ["nan", "overflow", "spike", "left", "flush"]
runs = st.lists(st.sampled_from(KINDS), min_size=1, max_size=10)
optimizers = st.sampled_from(["sgd", "momentum", "adamw", "amsgrad"])


def network(seed: int) -> nn.Module:
    """Return a model with running statistics and a dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def shell_of(pipeline: Any, optimizer: str = "momentum", seed: int = 0, **options: Any) -> Shell:
    """Return a shell of that model, one optimizer of the kind named, and a scheduler."""
    model = network(seed)
    kinds: dict[str, Any] = {
        "sgd": lambda leaves: torch.optim.SGD(leaves, lr=0.1),
        "momentum": lambda leaves: torch.optim.SGD(leaves, lr=0.1, momentum=0.9, weight_decay=0.01),
        "adamw": lambda leaves: torch.optim.AdamW(leaves, lr=0.1),
        "amsgrad": lambda leaves: torch.optim.Adam(leaves, lr=0.1, amsgrad=True),
    }
    made = kinds[optimizer](model.parameters())
    return Shell(model, made, pipeline, torch.optim.lr_scheduler.StepLR(made, 2, gamma=0.9), **options)


FACTORS = {"nan": float("nan"), "overflow": 1e37, "spike": 1e3}


def present(shell: Shell, kind: str, place: int) -> None:
    """Run one micro-batch of a kind, or a flush; data depend on the place, dropout on torch's generator."""
    if kind == "flush":
        shell.flush()
        return
    model = shell._driver.applier.models.modules["main"]
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(place))
    with shell.batch({"x": x}):
        loss = model(x).float().square().mean() * FACTORS.get(kind, 1.0)
        if kind != "left":
            shell.update(loss)


def run(shell: Shell, kinds: Iterable[str], start: int = 0) -> None:
    """Run micro-batches from a place on."""
    for place, kind in enumerate(kinds, start):
        present(shell, kind, place)
