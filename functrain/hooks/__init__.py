"""The hooks that come with the library, one file per family."""

from functrain._hook import Hook
from functrain.hooks.accumulate import Accumulate as Accumulate
from functrain.hooks.best import BestAverage as BestAverage
from functrain.hooks.clip import ClipNorm as ClipNorm
from functrain.hooks.clip import ClipValue as ClipValue
from functrain.hooks.clip_adaptive import ClipAdaptive as ClipAdaptive
from functrain.hooks.clip_statistics import ClipPercentile as ClipPercentile
from functrain.hooks.clip_statistics import ClipZScore as ClipZScore
from functrain.hooks.ema import EMA as EMA
from functrain.hooks.precision import MixedPrecision as MixedPrecision
from functrain.hooks.skip import SkipNonFinite as SkipNonFinite
from functrain.hooks.spike_statistics import FixedLimit as FixedLimit
from functrain.hooks.spike_statistics import MedianDeviation as MedianDeviation
from functrain.hooks.spike_statistics import MovingMean as MovingMean
from functrain.hooks.spikes import SkipSpikes as SkipSpikes

LIBRARY: tuple[type[Hook], ...] = (
    Accumulate,
    MixedPrecision,
    ClipNorm,
    ClipValue,
    ClipAdaptive,
    ClipPercentile,
    ClipZScore,
    SkipNonFinite,
    SkipSpikes,
    EMA,
    BestAverage,
)
"""Every hook of the library: the law suite and the tables are made from this list, so none can be forgotten."""
