"""How the decay of a moving average grows in the beginning: formulas of the field, by the name of their source.

Each is a pure function of ``n``, the lerps done before this one, and of the decay that it leads to. Any function
``(n, decay) -> decay`` will do in their place; in the pure engine its numbers are 0-d tensors.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from functrain._configuration import Configuration
from functrain._select import Number, maximum, minimum
from functrain.hooks.numbers import power, real


class Warmup(Configuration):
    """A formula: configuration as data, and one call."""

    @property
    def least(self) -> float:
        """The decay that it cannot fall below."""
        return 0.0

    def __call__(self, n: Number, decay: Number) -> Number:
        """Return the decay after ``n`` lerps."""
        raise NotImplementedError


class TensorFlowWarmup(Warmup):
    """``min(decay, (1 + n) / (10 + n))``: ExponentialMovingAverage of TensorFlow, and what Diffusers does by default.

    >>> TensorFlowWarmup()(0, 0.9999), TensorFlowWarmup()(10**9, 0.9999)
    (0.1, 0.9999)
    """

    def __call__(self, n: Number, decay: Number) -> Number:
        """Return the decay after ``n`` lerps."""
        return minimum((1.0 + real(n)) / (10.0 + real(n)), decay)


class InverseGammaWarmup(Warmup):
    """``1 - (1 + n / inv_gamma) ** -power``, but from ``min_decay`` to the decay: ema-pytorch, Diffusers, timm.

    With a power of 1 all weights count the same; 2/3 reaches .999 after 31,600 updates, 3/4 after 10,000.

    Attributes:
        inv_gamma: updates after which the decay begins to grow.
        power: how fast it grows.
        min_decay: where it starts.

    >>> InverseGammaWarmup(power=1.0)(3, 0.9999)
    0.75
    """

    inv_gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    power: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2 / 3
    min_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def least(self) -> float:
        """The decay that it starts at."""
        return self.min_decay

    def __call__(self, n: Number, decay: Number) -> Number:
        """Return the decay after ``n`` lerps."""
        grown = 1.0 - power(1.0 + real(n) / self.inv_gamma, -self.power)
        return maximum(minimum(grown, decay), self.min_decay)


class YOLOWarmup(Warmup):
    """``decay * (1 - exp(-n / tau))``: ModelEMA of YOLOv5 and its successors.

    Attributes:
        tau: updates in which the decay comes to 63 % of its value.

    >>> YOLOWarmup()(0, 0.9999)
    0.0
    """

    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2000.0

    def __call__(self, n: Number, decay: Number) -> Number:
        """Return the decay after ``n`` lerps."""
        return decay * (1.0 - power(math.e, -(real(n) / self.tau)))
