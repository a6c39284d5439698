"""Mixed precision: autocast, and loss scaling where the exponent range needs it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Self, cast

import torch
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from functrain._gradients import by_optimizer, non_finite
from functrain._hook import Hook, Name, Outcome, Stages, Writes
from functrain._select import Flag, both, negate
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap

NAMES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
}


def _dtype(value: Any) -> torch.dtype:
    """Return the dtype that a name or a dtype means."""
    name = str(value).lower().removeprefix("torch.") if isinstance(value, str | torch.dtype) else ""
    if name not in NAMES:
        msg = f"must be one of (float32, bfloat16, float16); got {value!r}."
        raise ValueError(msg)
    return NAMES[name]


Precision = Annotated[
    torch.dtype | str,
    BeforeValidator(_dtype),
    PlainSerializer(lambda dtype: str(dtype).removeprefix("torch."), return_type=str),
]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
RULE = ("growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale")


class MixedPrecision(Hook):
    """Forward and loss in low precision; in fp16 also a loss scale that follows overflows as ``GradScaler`` does.

    ``float32`` changes nothing, ``bfloat16`` opens autocast, ``float16`` opens autocast and scales. The interpreter
    scales the loss after all hooks, unscales at a boundary before BEFORE_OPTIMIZER_STEP, and moves the scale; this hook
    judges. ``state.scaler`` is the truth: ``scale``, ``growth_tracker``, ``found_inf`` per optimizer.

    Stages: DO_OPTIMIZER_STEP. Writes ``scaler``. Vetoes: when every optimizer that has gradients overflowed; when only
    some did, the interpreter skips those. A veto that came before is no scaler event.

    Attributes:
        precision: ``float32``, ``bfloat16`` or ``float16``, a ``torch.dtype``, or ``fp32``, ``bf16``, ``fp16``.
        init_scale: loss scale to start from.
        growth_factor: what the scale is multiplied by after ``growth_interval`` steps without overflow.
        backoff_factor: what it is multiplied by after an overflow.
        growth_interval: steps without overflow until the scale grows.
        min_scale: floor of the scale.
        max_scale: cap of the scale.
        max_consecutive: skips in a row before ``SkipLimitError``; None for no limit.

    >>> MixedPrecision(precision="bf16").precision
    torch.bfloat16

    See also: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    precision: Precision
    init_scale: Factor = 65536.0
    growth_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0
    backoff_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    growth_interval: Annotated[int, Field(ge=1)] = 2000
    min_scale: Factor = 1.0
    max_scale: Annotated[float, Field(gt=0)] = 2.0**24
    max_consecutive: Annotated[int, Field(ge=0)] | None = 100
    priority: int = 20
    name: Name = "precision"
    stages: Stages = frozenset({Stage.DO_OPTIMIZER_STEP})
    writes: Writes = frozenset({"scaler"})
    exclusive: str | None = "precision"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the names of a precision have come to."""
        return cast("torch.dtype", self.precision)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Refuse a floor above the cap."""
        if self.min_scale > self.max_scale:
            msg = f"min_scale={self.min_scale} lies above max_scale={self.max_scale}"
            raise ValueError(msg)
        return self

    @property
    def scales(self) -> bool:
        """Whether this precision needs a loss scale."""
        return self.precision is torch.float16

    def init(self, state: TrainState) -> Any:  # noqa: ARG002 - needs nothing of it
        """Keep the rule by which the scale moves; nothing without a scale."""
        return FrozenMap({name: getattr(self, name) for name in RULE} if self.scales else {})

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - claims one stage
        """Find out who overflowed, unless the step is off anyway."""
        if not state.scaler:
            return Outcome(state, True, state.loss)
        going = both(state.window.boundary, negate(will_skip))  # in mid-window gradients still carry the scale
        bad = {} if going is False else non_finite(state)
        found = FrozenMap({key: both(going, bad.get(key, False)) for key in state.scaler["found_inf"]})
        state = state.replace(scaler=state.scaler | {"found_inf": found})
        return Outcome(state, negate(all_overflowed(state)), state.loss)

    def inference_autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the autocast of this precision for a validation pass; it touches no scale."""
        if self.precision is torch.float32:
            return nullcontext()
        return torch.autocast(device.type, self.dtype)


def all_overflowed(state: TrainState) -> Flag:
    """Tell whether every optimizer that has gradients overflowed; False where none has any."""
    found = state.scaler["found_inf"]
    busy = [key for key, grads in by_optimizer(state).items() if grads and key in found]
    result: Flag = bool(busy)
    for key in busy:
        result = both(result, found[key])
    return result
