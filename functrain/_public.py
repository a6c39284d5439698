"""Every public name of functrain; ``import functrain`` imports this at the first one that is asked for."""

from functrain._clock import Clock
from functrain._combinators import every, on, when
from functrain._errors import CheckpointError, PurityError, SkipLimitError, StructureError
from functrain._fold import Pipeline, fold
from functrain._function_hook import hook
from functrain._hook import Hook, Outcome
from functrain._observer import observe
from functrain._owners import Owners
from functrain._renaming import named, prioritized
from functrain._select import select
from functrain._stage import GATED_STAGES, UPDATE_STAGES, Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain._window import Window
from functrain.disk import Checkpoint, latest, load, save, save_average
from functrain.hooks import (
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
    InverseGammaWarmup,
    Lookahead,
    MedianDeviation,
    MixedPrecision,
    MovingMean,
    PowerEMA,
    PowerSnapshot,
    SkipNonFinite,
    SkipSpikes,
    SwitchEMA,
    TensorFlowWarmup,
    YOLOWarmup,
    gamma_of,
    post_hoc_average,
    post_hoc_coefficients,
    relative_std_of,
)
from functrain.shell import Best, History, Shell, Snapshot, fit, reestimate_batch_norm

__all__ = [
    "EMA",
    "GATED_STAGES",
    "SWA",
    "UPDATE_STAGES",
    "Accumulate",
    "Best",
    "BestAverage",
    "Checkpoint",
    "CheckpointError",
    "ClipAdaptive",
    "ClipNorm",
    "ClipPercentile",
    "ClipValue",
    "ClipZScore",
    "Clock",
    "FixedLimit",
    "FrozenMap",
    "History",
    "Hook",
    "InverseGammaWarmup",
    "Lookahead",
    "MedianDeviation",
    "MixedPrecision",
    "MovingMean",
    "Outcome",
    "Owners",
    "Pipeline",
    "PowerEMA",
    "PowerSnapshot",
    "PurityError",
    "Shell",
    "SkipLimitError",
    "SkipNonFinite",
    "SkipSpikes",
    "Snapshot",
    "Stage",
    "StructureError",
    "SwitchEMA",
    "TensorFlowWarmup",
    "TrainState",
    "Window",
    "YOLOWarmup",
    "every",
    "fit",
    "fold",
    "gamma_of",
    "hook",
    "latest",
    "load",
    "named",
    "observe",
    "on",
    "post_hoc_average",
    "post_hoc_coefficients",
    "prioritized",
    "reestimate_batch_norm",
    "relative_std_of",
    "save",
    "save_average",
    "select",
    "when",
]
