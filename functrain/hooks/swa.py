"""Stochastic weight averaging: the mean of the weights along the way."""

from __future__ import annotations

from typing import Any, ClassVar

from functrain._select import Number
from functrain.hooks.average import Average
from functrain.hooks.numbers import real


class SWA(Average):
    """After each eligible step the shadow is the mean of all weights so far: shadow <- lerp(shadow, weight, 1 / n).

    Bitwise ``torch.optim.swa_utils.AveragedModel`` with ``get_swa_multi_avg_fn`` on float32 weights. Meant for the end
    of a run: ``start_step`` says from where on, ``update_every`` how often, usually once an epoch.

    Stages: AFTER_OPTIMIZER_STEP. Writes its slot only. Never vetoes.
    Source: Izmailov et al. 2018, https://arxiv.org/abs/1803.05407.

    Attributes: those of every average, see :class:`functrain.EMA`.

    >>> SWA(start_step=7500, update_every=100).name
    'swa'

    See also: :class:`functrain.PowerEMA`, which forgets the beginning of the run by itself.
    """

    family: ClassVar[str] = "swa"

    def weight(self, slot: Any) -> Number:
        """Return one over the number of weights, this one included."""
        return 1.0 / real(slot["n_averaged"] + 1)
