"""Every hook of the library with drawn configuration, bare or in a combinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from functrain import (
    EMA,
    SWA,
    Accumulate,
    BestAverage,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    FixedLimit,
    Hook,
    InverseGammaWarmup,
    Lookahead,
    MedianDeviation,
    MixedPrecision,
    MovingMean,
    PowerEMA,
    SkipNonFinite,
    SkipSpikes,
    SwitchEMA,
    TensorFlowWarmup,
    TrainState,
    YOLOWarmup,
    every,
    named,
    on,
    prioritized,
    when,
)
from functrain.hooks import LIBRARY
from functrain.testing.checking import check_options, strategy
from functrain.testing.synthetic import synthetic_hooks

LIMITS = st.sampled_from([0.0, 0.1, 1.0, 3.0, 1e30, float("inf")])
POSITIVE = st.sampled_from([1e-6, 0.01, 0.5, 2.0])
SKIPS = st.none() | st.integers(0, 3)


def tokens(batch: Any) -> Any:
    """Return the weight of a micro-batch."""
    return batch["tokens"]


def odd_batch(state: TrainState) -> Any:
    """Hold in every second batch: a bool or a tensor, as the state's numbers are."""
    return state.clock.batch % 2 == 1


def finite_loss(state: TrainState) -> Any:
    """Hold where the loss is finite: a tensor in both forms."""
    return state.loss.detach().isfinite()


STATISTICS = st.one_of(
    st.builds(FixedLimit, limit=LIMITS),
    st.builds(
        MovingMean,
        ratio=st.sampled_from([1.1, 2.0]),
        alpha=st.sampled_from([0.1, 1.0]),
        start=st.none() | st.floats(-4, 4),
        warmup=st.integers(0, 2),
    ),
    st.builds(
        MedianDeviation, deviations=st.sampled_from([1.0, 6.0]), history=st.integers(1, 4), warmup=st.integers(1, 2)
    ),
)

SPIKES = st.one_of(
    st.builds(SkipSpikes, by=STATISTICS, drop=st.booleans(), max_consecutive=SKIPS),
    st.builds(SkipSpikes, by=STATISTICS, of=st.just("grad_norm"), max_consecutive=SKIPS),
)

WARMUPS = st.sampled_from([None, None, TensorFlowWarmup(), InverseGammaWarmup(), YOLOWarmup(tau=5.0)])
FORMULAS: dict[str, Any] = {"warmup": WARMUPS, "first": st.sampled_from(["copy", "copy", "lerp", "zero"])}
DECAYS: dict[str, Any] = {"decay": st.sampled_from([0.0, 0.5, 0.9, 0.999]), **FORMULAS}
HALF_LIVES: dict[str, Any] = {"half_life": st.sampled_from([0.5, 3.0, 100.0]), **FORMULAS}
AVERAGES: dict[str, Any] = {
    "model_key": st.sampled_from(["main", "main", "teacher"]),
    "update_every": st.integers(1, 3),
    "start_step": st.integers(0, 3),
    "use_buffers": st.booleans(),
    "num_updates": st.integers(0, 2),
    "parameters": st.sampled_from([None, None, "*w*", "*"]),
    "dtype": st.sampled_from([None, None, "float32", "float64"]),
    "device": st.sampled_from([None, "cpu"]),
    "finite_only": st.booleans(),
}

HOOKS: dict[type[Hook], st.SearchStrategy[Hook]] = {
    Accumulate: st.builds(
        Accumulate,
        every=st.integers(1, 4),
        weight=st.sampled_from([None, None, tokens]),
        partial=st.sampled_from(["flush", "carry", "drop"]),
    ),
    MixedPrecision: st.builds(
        MixedPrecision,
        precision=st.sampled_from(["float32", "bf16", "float16", torch.float16]),
        init_scale=st.sampled_from([1.0, 1024.0, 65536.0]),
        growth_interval=st.integers(1, 3),
        max_consecutive=SKIPS,
    ),
    ClipNorm: st.builds(ClipNorm, max_norm=LIMITS, norm_type=st.sampled_from([2.0, 2.0, 1.0, 3.0, 0.5, float("inf")])),
    ClipValue: st.builds(ClipValue, clip_value=LIMITS),
    ClipAdaptive: st.builds(ClipAdaptive, clip=POSITIVE, eps=POSITIVE),
    ClipPercentile: st.builds(
        ClipPercentile, percentile=st.sampled_from([0.0, 10.0, 33.3, 100.0]), history=st.integers(1, 4)
    ),
    ClipZScore: st.builds(ClipZScore, z=POSITIVE, alpha=st.sampled_from([0.0, 0.5, 0.97]), warmup=st.integers(1, 3)),
    SkipNonFinite: st.builds(SkipNonFinite, drop=st.booleans(), max_consecutive=SKIPS),
    SkipSpikes: SPIKES,
    EMA: st.builds(EMA, **DECAYS, **AVERAGES) | st.builds(EMA, **HALF_LIVES, **AVERAGES),
    SWA: st.builds(SWA, **AVERAGES),
    PowerEMA: st.builds(PowerEMA, relative_std=st.sampled_from([0.05, 0.1, 0.25]), **AVERAGES),
    SwitchEMA: st.builds(SwitchEMA, switch_every=st.integers(1, 3), **DECAYS, **AVERAGES),
    Lookahead: st.builds(Lookahead, alpha=st.sampled_from([0.1, 0.5, 0.8, 1.0]), **AVERAGES),
    BestAverage: st.builds(
        BestAverage,
        mode=st.sampled_from(["min", "max"]),
        of=st.none(),  # of an average it needs one beside it
        model_key=st.sampled_from(["main", "main", "teacher"]),
        keep_on=st.sampled_from(["cpu", "model"]),
    ),
}

COMBINATORS: tuple[Callable[[Hook], Any], ...] = (
    lambda hook: when(odd_batch, hook),
    lambda hook: when(finite_loss, hook),
    lambda hook: every(2, hook),
    lambda hook: on("*weight", hook),
    lambda hook: named(f"{hook.name}_again", hook),
    lambda hook: prioritized(hook.priority + 1, hook),
    lambda hook: every(1, when(odd_batch, hook)),
)


@st.composite
def library_hooks(draw: st.DrawFn, kind: type[Hook], *, wrapped: bool = True) -> Hook:
    """Draw a hook of one class, every third time in a combinator."""
    hook = draw(HOOKS[kind])
    return draw(st.sampled_from(COMBINATORS))(hook) if wrapped and draw(st.integers(0, 2)) == 0 else hook


@strategy(check_options)
def hooks(draw: st.DrawFn, *, kinds: Sequence[type[Hook]] = LIBRARY, wrapped: bool = True) -> Hook:
    """Draw a hook: one of the library with drawn configuration, or one that nobody would write and that is lawful.

    Args:
        draw: given by Hypothesis.
        kinds: classes of the library to draw from.
        wrapped: put every third one into a combinator.

    Raises:
        InvalidArgument: no classes.

    >>> hooks(kinds=[EMA], wrapped=False)
    hooks(kinds=[functrain.hooks.ema.EMA], wrapped=False)
    """
    if kinds is LIBRARY and draw(st.integers(0, 4)) == 0:
        return draw(synthetic_hooks())
    return draw(library_hooks(draw(st.sampled_from(kinds)), wrapped=wrapped))
