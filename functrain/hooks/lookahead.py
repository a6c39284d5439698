"""Lookahead: k steps forward, one step back."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from functrain._select import Flag, Number, both
from functrain.hooks.write_back import WritingAverage


class Lookahead(WritingAverage):
    """Every ``update_every`` steps slow <- lerp(slow, fast, alpha) and fast <- slow.

    The slow weights are the shadow and begin as the weights at SETUP; the fast ones are those that the optimizer
    steps. The optimizer keeps its state; buffers are copied, since nothing of them is slow.

    Stages: AFTER_OPTIMIZER_STEP. Writes ``params``. Never vetoes.
    Source: Zhang et al. 2019, https://arxiv.org/abs/1907.08610.

    Attributes:
        alpha: the step of the slow weights, in (0, 1]. In the slot as ``alpha``.
        update_every: steps that the fast weights take; ``k`` in the paper.
        model_key and all the others: those of every average, see :class:`functrain.EMA`.

    >>> Lookahead(update_every=10).alpha
    0.5

    See also: :class:`functrain.SwitchEMA`, which averages every step.
    """

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    update_every: Annotated[int, Field(gt=0)] = 5
    use_buffers: bool = False

    family: ClassVar[str] = "lookahead"

    def numbers(self) -> dict[str, float]:
        """Lift the step of the slow weights."""
        return {"alpha": self.alpha}

    def weight(self, slot: Any) -> Number:
        """Return the step of the slow weights."""
        return slot["alpha"]

    def copies(self, slot: Any) -> Flag:  # noqa: ARG002 - never, whatever was before
        """Never copy: the first step is from the weights at SETUP."""
        return False

    def writes_at(self, slot: Any, stepped: Flag) -> Flag:
        """Tell whether the slow weights have just moved."""
        return both(stepped, self.due(slot))
