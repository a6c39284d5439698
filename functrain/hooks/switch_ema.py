"""Switch EMA: training goes on from its own average now and then."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from functrain._hook import Writes
from functrain._select import Flag, both, is_multiple
from functrain.hooks.ema import EMA
from functrain.hooks.write_back import BEFORE_OTHER_AVERAGES, WritingAverage


class SwitchEMA(WritingAverage, EMA):
    """An :class:`functrain.EMA` that is written into the weights every ``switch_every`` completed steps.

    The optimizer keeps its state, buffers stay. Nothing is written before the first update.

    Stages: AFTER_OPTIMIZER_STEP. Writes ``params``. Never vetoes.
    Source: Li et al. 2024, https://arxiv.org/abs/2402.09240, where a switch comes at the end of each epoch.

    Attributes:
        switch_every: steps from one switch to the next.
        decay, model_key and all the others: see :class:`functrain.EMA`.

    >>> SwitchEMA(switch_every=100, decay=0.99).name
    'switch_ema'

    See also: :class:`functrain.Lookahead`, which averages only where it writes.
    """

    priority: int = BEFORE_OTHER_AVERAGES
    writes: Writes = frozenset({"params"})
    switch_every: Annotated[int, Field(gt=0)]

    family: ClassVar[str] = "switch_ema"

    def writes_at(self, slot: Any, stepped: Flag) -> Flag:
        """Tell whether the count of steps is a multiple, once there is an average."""
        return both(stepped, both(is_multiple(slot["completed"], self.switch_every), slot["n_averaged"] > 0))
