"""Hooks under a tracer: each stage is one graph and maps over lanes; the tests of the engine go further."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as torch_pytree

from functrain import (
    EMA,
    SWA,
    UPDATE_STAGES,
    Accumulate,
    BestAverage,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    FixedLimit,
    FrozenMap,
    InverseGammaWarmup,
    Lookahead,
    MedianDeviation,
    MixedPrecision,
    Pipeline,
    PowerEMA,
    SkipNonFinite,
    SkipSpikes,
    Stage,
    SwitchEMA,
    TensorFlowWarmup,
    TrainState,
    YOLOWarmup,
    every,
    fold,
    named,
    on,
    when,
)
from functrain._clock import Clock
from functrain._owners import Owners
from functrain._wrapper import innermost
from functrain.hooks import LIBRARY
from functrain.testing.breach import require_same
from functrain.testing.drawn_hooks import finite_loss, tokens
from functrain.testing.forms import in_form

UPDATES = [*(stage for stage in Stage if stage in UPDATE_STAGES), Stage.AFTER_VALIDATION]
PIPELINE = fold(
    Accumulate(every=2, weight=tokens),
    MixedPrecision(precision="float16"),
    ClipNorm(max_norm=1.0),
    when(finite_loss, ClipValue(clip_value=0.5)),
    ClipAdaptive(),
    ClipPercentile(history=4),
    ClipZScore(warmup=1),
    SkipNonFinite(),
    SkipSpikes(by=MedianDeviation(history=4, warmup=1)),
    SkipSpikes(of="grad_norm", by=FixedLimit(limit=9.0), name="far"),
    every(2, EMA()),
    on("*bias", named("biases", EMA(decay=0.5))),
    BestAverage(),
    EMA(name="slow", half_life=9.0, warmup=InverseGammaWarmup(), first="zero", dtype="float64", finite_only=True),
    EMA(name="warm", warmup=TensorFlowWarmup(), first="lerp", parameters="w"),
    SWA(),
    PowerEMA(finite_only=True),
    SwitchEMA(switch_every=2, warmup=YOLOWarmup(tau=9.0)),
    Lookahead(update_every=1),
)


def state(seed: int) -> TrainState:
    """Return a state in the engine's form, ready for the pipeline."""
    generator = torch.Generator().manual_seed(seed)
    weights, grads = ({"w": torch.randn(3, 2, generator=generator), "bias": torch.ones(2)} for _ in range(2))
    loss = torch.randn((), generator=generator)
    made = TrainState(
        params={"main": weights},
        buffers={"main": {"mean": torch.zeros(2), "count": torch.tensor(1)}},
        grads={"main": grads},
        loss=loss,
        raw_loss=loss.clone(),
        clock=Clock(optimizer_steps=FrozenMap({"a": seed})),
        stepped={"a": True},
        scaler={"scale": 4.0, "growth_tracker": 0, "found_inf": {"a": False}},
        batch={"tokens": seed},
        validation={"total_loss": torch.tensor(1.0 / seed)},
        owners=Owners({"a": [("main", "w"), ("main", "bias")]}),
    )
    return in_form(PIPELINE.prepared(made), "tensor")


def called(pipeline: Pipeline, stage: Stage) -> Any:
    """Return one stage of a pipeline as a function between trees of tensors."""
    return lambda state, will_skip: in_form(tuple(pipeline(state, stage, will_skip)), "tensor")


def test_every_hook_of_the_library_is_traced() -> None:
    """A hook that is added later must be added above."""
    assert {type(innermost(each)) for each in PIPELINE} == set(LIBRARY)


@pytest.mark.slow
@pytest.mark.parametrize("stage", UPDATES)
def test_a_stage_is_one_graph(stage: Stage) -> None:
    """Without a graph break, and with bitwise the result of the untraced call."""
    torch.compiler.reset()
    call = called(PIPELINE, stage)
    traced = torch.compile(call, fullgraph=True, backend="eager")
    for seed in (1, 2):
        for will_skip in (False, True):
            given = state(seed), torch.tensor(will_skip)
            require_same(call(*given), traced(*given), "traced and untraced differ")


@pytest.mark.parametrize("stage", UPDATES)
def test_a_stage_maps_over_lanes(stage: Stage) -> None:
    """Each lane of a vmapped call makes the decisions of the lane alone, and the same numbers but for rounding."""
    lanes, skips = [state(seed) for seed in (1, 2, 3)], torch.tensor([False, True, False])
    stacked = torch_pytree.tree_map(lambda *leaves: torch.stack(leaves), *lanes)
    mapped = torch.func.vmap(called(PIPELINE, stage))(stacked, skips)
    for place, lane in enumerate(lanes):
        alone = called(PIPELINE, stage)(lane, skips[place])
        for found, expected in zip(torch_pytree.tree_leaves(mapped), torch_pytree.tree_leaves(alone), strict=True):
            torch.testing.assert_close(found[place], expected, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_a_tracer_asks_no_other_rank() -> None:
    """A hook that decides with all ranks is one graph, too: a compiled step is one process."""
    from functrain.testing import Scene, laws

    hook = Accumulate(every=1, weight=lambda batch: batch["tokens"])
    scaler = {"scale": 1.0, "growth_tracker": 0, "found_inf": {}}
    state = fold(hook).prepared(TrainState(scaler=scaler, batch={"tokens": torch.tensor(3.0)}, world=4))
    laws.TRACEABLE.check(Scene(hook, state, Stage.BEFORE_BATCH, will_skip=False))
