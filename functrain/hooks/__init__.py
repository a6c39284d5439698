"""The hooks that come with the library, one file per family.

``LIBRARY`` lists them; each has a priority, by which a fold orders them:

>>> from functrain.hooks import LIBRARY
>>> {each.__name__: each.model_fields["priority"].default for each in LIBRARY[:4]}
{'Accumulate': 10, 'MixedPrecision': 20, 'ClipNorm': 30, 'ClipValue': 30}
"""

from functrain._hook import Hook
from functrain.hooks.accumulate import Accumulate
from functrain.hooks.best import BestAverage
from functrain.hooks.clip import ClipNorm, ClipValue
from functrain.hooks.clip_adaptive import ClipAdaptive
from functrain.hooks.clip_statistics import ClipPercentile, ClipZScore
from functrain.hooks.ema import EMA
from functrain.hooks.lookahead import Lookahead
from functrain.hooks.post_hoc import PowerSnapshot, post_hoc_average, post_hoc_coefficients
from functrain.hooks.power_ema import PowerEMA, gamma_of, relative_std_of
from functrain.hooks.precision import MixedPrecision
from functrain.hooks.skip import SkipNonFinite
from functrain.hooks.spike_statistics import FixedLimit, MedianDeviation, MovingMean
from functrain.hooks.spikes import SkipSpikes
from functrain.hooks.swa import SWA
from functrain.hooks.switch_ema import SwitchEMA
from functrain.hooks.warmup import InverseGammaWarmup, TensorFlowWarmup, YOLOWarmup

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

__all__ = [
    "EMA",
    "LIBRARY",
    "SWA",
    "Accumulate",
    "BestAverage",
    "ClipAdaptive",
    "ClipNorm",
    "ClipPercentile",
    "ClipValue",
    "ClipZScore",
    "FixedLimit",
    "InverseGammaWarmup",
    "Lookahead",
    "MedianDeviation",
    "MixedPrecision",
    "MovingMean",
    "PowerEMA",
    "PowerSnapshot",
    "SkipNonFinite",
    "SkipSpikes",
    "SwitchEMA",
    "TensorFlowWarmup",
    "YOLOWarmup",
    "gamma_of",
    "post_hoc_average",
    "post_hoc_coefficients",
    "relative_std_of",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
