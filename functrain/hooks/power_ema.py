"""Power-function averages: a width that grows with the run, so that no decay has to be chosen."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

from pydantic import Field

from functrain._select import Number, maximum
from functrain.hooks.average import Average
from functrain.hooks.numbers import power, real

WIDEST = 0.2886
"""The relative standard deviation of an exponent of 0, where every step counts the same."""


def relative_std_of(gamma: float) -> float:
    """Return the width of the profile ``t ** gamma``: its standard deviation over the length of the run.

    >>> round(relative_std_of(6.9372), 4)
    0.1

    See also: :func:`gamma_of`, the inverse.
    """
    return math.sqrt((gamma + 1) / (gamma + 3)) / (gamma + 2)


def gamma_of(relative_std: float) -> float:
    """Return the exponent whose profile has a width, to the last digit.

    Raises:
        ValueError: a width outside of (0, .2886], which no exponent has.

    >>> round(gamma_of(0.1), 4)
    6.9372
    """
    if not 0 < relative_std <= WIDEST:
        msg = f"relative_std must be in (0, {WIDEST}], got {relative_std}; .05 and .1 are usual"
        raise ValueError(msg)
    low, high = 0.0, 1.0 / relative_std
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if relative_std_of(middle) > relative_std else (low, middle)
    return middle


class PowerEMA(Average):
    """After each eligible step shadow <- lerp(shadow, weight, 1 - beta), beta = (1 - update_every / t) ** (gamma + 1).

    ``t`` is the model's completed steps. The weights of a run of any length count as ``t ** gamma``: the average is as
    wide as a fixed part of the run, and the beginning is forgotten.

    Stages: AFTER_OPTIMIZER_STEP. Writes its slot only. Never vetoes.
    Source: Karras et al. 2024 (EDM2), https://arxiv.org/abs/2312.02696.

    Attributes:
        relative_std: the width over the length of the run, in [.0001, .2886]. In the slot as ``gamma``.
        model_key, update_every and all the others: those of every average, see :class:`functrain.EMA`.

    >>> PowerEMA(relative_std=0.05).name
    'power_ema'

    See also: :func:`functrain.post_hoc_average`, which makes an average of any width from a few of these.
    """

    relative_std: Annotated[float, Field(ge=1e-4, le=WIDEST)] = 0.1

    family: ClassVar[str] = "power_ema"

    def numbers(self) -> dict[str, float]:
        """Lift the exponent."""
        return {"gamma": gamma_of(self.relative_std)}

    def weight(self, slot: Any) -> Number:
        """Return ``1 - beta`` for the step just completed."""
        # At a step that is not due, which the pure engine computes as well, t may be 0: no NaN may come from there.
        steps = real(maximum(slot["completed"], self.update_every))
        return 1.0 - power(1.0 - self.update_every / steps, slot["gamma"] + 1.0)
