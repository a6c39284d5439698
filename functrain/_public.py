"""Every public name of functrain; ``import functrain`` imports this at the first one that is asked for."""

from functrain._combinators import every, on, when
from functrain._errors import PurityError, SkipLimitError, StructureError
from functrain._fold import Pipeline, fold
from functrain._function_hook import hook
from functrain._hook import Hook, Outcome
from functrain._observer import observe
from functrain._renaming import named, prioritized
from functrain._select import select
from functrain._stage import GATED_STAGES, UPDATE_STAGES, Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.hooks import (
    EMA,
    Accumulate,
    BestAverage,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    FixedLimit,
    MedianDeviation,
    MixedPrecision,
    MovingMean,
    SkipNonFinite,
    SkipSpikes,
)
from functrain.shell import Best, History, Shell, Snapshot, fit, reestimate_batch_norm

__all__ = [
    "EMA",
    "GATED_STAGES",
    "UPDATE_STAGES",
    "Accumulate",
    "Best",
    "BestAverage",
    "ClipAdaptive",
    "ClipNorm",
    "ClipPercentile",
    "ClipValue",
    "ClipZScore",
    "FixedLimit",
    "FrozenMap",
    "History",
    "Hook",
    "MedianDeviation",
    "MixedPrecision",
    "MovingMean",
    "Outcome",
    "Pipeline",
    "PurityError",
    "Shell",
    "SkipLimitError",
    "SkipNonFinite",
    "SkipSpikes",
    "Snapshot",
    "Stage",
    "StructureError",
    "TrainState",
    "every",
    "fit",
    "fold",
    "hook",
    "named",
    "observe",
    "on",
    "prioritized",
    "reestimate_batch_norm",
    "select",
    "when",
]
