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
from functrain.hooks.lookahead import Lookahead as Lookahead
from functrain.hooks.post_hoc import PowerSnapshot as PowerSnapshot
from functrain.hooks.post_hoc import post_hoc_average as post_hoc_average
from functrain.hooks.post_hoc import post_hoc_coefficients as post_hoc_coefficients
from functrain.hooks.power_ema import PowerEMA as PowerEMA
from functrain.hooks.power_ema import gamma_of as gamma_of
from functrain.hooks.power_ema import relative_std_of as relative_std_of
from functrain.hooks.precision import MixedPrecision as MixedPrecision
from functrain.hooks.skip import SkipNonFinite as SkipNonFinite
from functrain.hooks.spike_statistics import FixedLimit as FixedLimit
from functrain.hooks.spike_statistics import MedianDeviation as MedianDeviation
from functrain.hooks.spike_statistics import MovingMean as MovingMean
from functrain.hooks.spikes import SkipSpikes as SkipSpikes
from functrain.hooks.swa import SWA as SWA
from functrain.hooks.switch_ema import SwitchEMA as SwitchEMA
from functrain.hooks.warmup import InverseGammaWarmup as InverseGammaWarmup
from functrain.hooks.warmup import TensorFlowWarmup as TensorFlowWarmup
from functrain.hooks.warmup import YOLOWarmup as YOLOWarmup

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
    SWA,
    PowerEMA,
    SwitchEMA,
    Lookahead,
    BestAverage,
)
"""Every hook of the library: the law suite and the tables are made from this list, so none can be forgotten."""
