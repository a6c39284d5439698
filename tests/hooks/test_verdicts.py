"""What hooks say where there is nothing to say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
    Hook,
    Lookahead,
    MixedPrecision,
    PowerEMA,
    SkipNonFinite,
    SkipSpikes,
    Stage,
    SwitchEMA,
    TrainState,
    fold,
)
from functrain._owners import Owners
from functrain._window import Window
from functrain.hooks import LIBRARY, FixedLimit, MedianDeviation

HOOKS = (
    Accumulate(every=1),
    MixedPrecision(precision="float16"),
    ClipNorm(max_norm=1.0),
    ClipValue(clip_value=0.5),
    ClipAdaptive(),
    ClipPercentile(history=4),
    ClipZScore(),
    SkipNonFinite(),
    SkipNonFinite(drop=False),
    SkipSpikes(),
    SkipSpikes(by=MedianDeviation(), drop=True),
    SkipSpikes(by=FixedLimit(limit=9.0), of="grad_norm"),
    EMA(),
    BestAverage(of=None),
    EMA(half_life=3.0, first="zero", finite_only=True),
    SWA(),
    PowerEMA(),
    SwitchEMA(switch_every=1),
    Lookahead(update_every=1),
)


def scene(hook: Hook) -> TrainState:
    """Return a state in which all is well, ready for a hook."""
    weights = {"main": {"w": torch.ones(2)}}
    state = TrainState(
        params=weights,
        grads=weights,
        loss=torch.tensor(1.0),
        raw_loss=torch.tensor(1.0),
        window=Window().with_entry(),
        stepped={"main": True},
        scaler={"scale": 4.0, "growth_tracker": 0, "found_inf": {"main": False}},
        owners=Owners({"main": [("main", "w")]}),
    )
    return fold(hook).prepared(state)


def test_every_hook_of_the_library_is_asked() -> None:
    """A hook that is added later must be added above."""
    assert {type(hook) for hook in HOOKS} == set(LIBRARY)


@pytest.mark.parametrize("will_skip", [False, True, torch.tensor(False), torch.tensor(True)], ids=str)
@pytest.mark.parametrize("hook", HOOKS, ids=repr)
def test_no_hook_vetoes_where_all_is_well(hook: Hook, will_skip: Any) -> None:
    """At every stage it claims a hook lets finite, quiet numbers pass, also where something else is skipped already."""
    state = scene(hook)
    for stage in sorted(hook.stages, key=list(Stage).index):
        found = hook(state, stage, will_skip)
        assert bool(found.proceed)
        assert float(found.loss) in {1.0, 4.0}
        state = found.state
