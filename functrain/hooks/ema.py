"""Exponential moving averages of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from functrain._select import Flag, Number, maximum
from functrain.hooks.average import Average
from functrain.hooks.numbers import power
from functrain.hooks.warmup import InverseGammaWarmup, TensorFlowWarmup, Warmup, YOLOWarmup

Formula: TypeAlias = TensorFlowWarmup | InverseGammaWarmup | YOLOWarmup | Warmup | Callable[[Number, Number], Number]
"""How a decay grows: a formula of the field, or any function ``(n, decay) -> decay``."""


def _formula(value: Any) -> Any:
    """Take a function of count and decay, or a formula as data; a class that was not called is none."""
    if value is None or isinstance(value, dict) or (callable(value) and not isinstance(value, type)):
        return value  # pyright: ignore[reportUnknownVariableType] - pydantic looks into it
    msg = f"warmup must be TensorFlowWarmup(), InverseGammaWarmup(), YOLOWarmup() or (n, decay) -> decay, got {value!r}"
    raise ValueError(msg)


class EMA(Average):
    """After each eligible step the shadow moves towards the weights: shadow <- lerp(shadow, weight, 1 - decay).

    Eligible: an optimizer of the model stepped, ``completed >= start_step`` and ``completed % update_every == 0``;
    ``completed`` counts the model's own steps, this one included. The shadow is fp32 over bf16 and fp16 weights.
    Bitwise ``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn``.

    Stages: AFTER_OPTIMIZER_STEP. Writes its slot only. Never vetoes.

    Attributes:
        model_key: the model to average.
        decay: in [0, 1). In the slot as ``decay``.
        half_life: instead of a decay, steps after which a weight counts half. In the slot as ``half_life``.
        warmup: how the decay grows in the beginning, ``(n, decay) -> decay`` after ``n`` lerps.
        first: what the first update does. "copy" copies the weights; "lerp" moves from the weights at SETUP; "zero"
            starts from zero and divides by the weights so far, as Adam does, so that the shadow is the debiased one.
        update_every: steps from one update to the next.
        start_step: first eligible step.
        use_buffers: average float buffers, too; False copies them. Other buffers are always copied.
        num_updates: where the count of updates starts.
        parameters: which ones, a pattern or ``(model_key, name) -> bool``; None takes all.
        dtype: what the shadow is kept in at least; None keeps fp32 over bf16 and fp16, and else the weight's own.
        device: where the shadow is kept; None stays with the weight. In the shell nothing waits for a transfer.
        finite_only: leave the shadow as it is wherever the weight is not finite.

    >>> EMA(model_key="teacher").name
    'ema_teacher'

    See also: ``Shell.averaged``, ``Shell.averaged_module``; :class:`functrain.PowerEMA`, which needs no decay.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    half_life: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    warmup: Annotated[Formula | None, BeforeValidator(_formula)] = None
    first: Literal["copy", "lerp", "zero"] = "copy"

    family: ClassVar[str] = "ema"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse two decays, and a warm-up that ends where it begins."""
        if self.half_life is not None and self.decay != type(self).model_fields["decay"].default:
            msg = f"half_life={self.half_life} and decay={self.decay} both say how fast to forget; give one of them"
            raise ValueError(msg)
        least = self.warmup.least if isinstance(self.warmup, Warmup) else 0.0
        if least > self.longest():
            msg = f"warmup starts at min_decay={least}, above the decay of {self.longest()} that it leads to"
            raise ValueError(msg)
        return self

    def longest(self) -> float:
        """Return the decay that the configuration leads to."""
        return self.decay if self.half_life is None else 0.5 ** (self.update_every / self.half_life)

    def numbers(self) -> dict[str, float]:
        """Lift the decay or the half-life; from zero also the product of all decays so far."""
        rate = {"decay": self.decay} if self.half_life is None else {"half_life": self.half_life}
        return {**rate, "bias": 1.0} if self.first == "zero" else rate

    def decay_now(self, slot: Any) -> Number:
        """Return the decay of the update under way."""
        decay = slot["decay"] if self.half_life is None else power(0.5, self.update_every / slot["half_life"])
        if self.warmup is None:
            return decay
        done = maximum(slot["n_averaged"] - 1, 0) if self.first == "copy" else slot["n_averaged"]
        return self.warmup(done, decay)

    def weight(self, slot: Any) -> Number:
        """Return ``1 - decay``; from zero, over the sum of the weights so far, which makes the first one a copy."""
        decay = self.decay_now(slot)
        return (1.0 - decay) / (1.0 - slot["bias"] * decay) if self.first == "zero" else 1.0 - decay

    def copies(self, slot: Any) -> Flag:
        """Tell whether this update is a copy."""
        return super().copies(slot) if self.first == "copy" else False

    def remembered(self, slot: Any) -> dict[str, Number]:
        """Return the product of all decays, if the average starts from zero."""
        return {"bias": slot["bias"] * self.decay_now(slot)} if self.first == "zero" else {}
