"""The best average so far, by what validations found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from functrain._hook import Hook, Name, Outcome, Stages
from functrain._select import Flag, Number, both, either, equal, select, wide
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.hooks.average import ModelKey
from functrain.hooks.shadow import shadow_of


class BestAverage(Hook):
    """Whatever comes later, the weights of the best validation are kept: a copy, the score and the step.

    What is kept is what ``fit`` validates: the average, or the raw weights before its first update. A NaN never wins,
    and of equal scores the first one stays. ``Shell.best`` hands it out.

    Stages: SETUP, AFTER_VALIDATION. Reads the slot of an average. Writes its slot only. Never vetoes.

    Attributes:
        metric: key of the validation summary.
        mode: "min" or "max": whether a lower or a higher score is better.
        of: name of the average; None for the raw weights.
        model_key: the model that the average is of.
        keep_on: "cpu", or "model" for the device of the model.

    Raises:
        KeyError: at SETUP, no such model or average; at a validation, no such metric. Lists those there are.
        ValueError: at SETUP, an average of another model.

    >>> BestAverage(metric="accuracy", mode="max")
    BestAverage(metric='accuracy', mode='max')

    See also: :class:`EMA`, ``Shell.best``, ``Shell.validated``.
    """

    metric: Annotated[str, Field(min_length=1)] = "total_loss"
    mode: Literal["min", "max"] = "min"
    of: Name | None = "ema"
    model_key: ModelKey = "main"
    keep_on: Literal["cpu", "model"] = "cpu"
    priority: int = 60
    stages: Stages = frozenset({Stage.SETUP, Stage.AFTER_VALIDATION})

    def default_name(self) -> str:
        """Return ``best``, with the model's key unless that is "main"."""
        return "best" if self.model_key == "main" else f"best_{self.model_key}"

    def init(self, state: TrainState) -> Any:
        """Keep nothing so far, in the structure of what will be kept.

        Raises:
            KeyError: no such model; lists those there are.
        """
        if self.model_key not in state.params:
            msg = f"{self.name!r} could not find model_key={self.model_key!r}; the models are {sorted(state.params)}"
            raise KeyError(msg)
        counts = {"score": math.nan, "step": 0, "epoch": 0, "kept": 0, "averaged": False}
        weights, buffers = (self._placed(shadow_of(held)) for held in _raw(state, self.model_key))
        return FrozenMap({**counts, "weights": weights, "buffers": buffers})

    def _placed(self, tensors: FrozenMap[Tensor]) -> FrozenMap[Tensor]:
        """Return tensors where they are to be kept."""
        return FrozenMap({n: leaf.cpu() for n, leaf in tensors.items()}) if self.keep_on == "cpu" else tensors

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - vetoes do not matter
        """Check that there is such an average; judge a validation."""
        if stage is Stage.SETUP:
            self._check(state)
        elif stage is Stage.AFTER_VALIDATION and state.validation:
            slot = state.hooks[self.name]
            score = self._score(state.validation, slot["score"])
            kept = select(self._is_better(score, slot), lambda: self._taken(state, slot, score), lambda: slot)
            return Outcome(state.with_slot(self.name, kept), True, state.loss)
        return Outcome(state, True, state.loss)

    def _check(self, state: TrainState) -> None:
        """Refuse an average that there is not, or that is of another model."""
        if self.of is None:
            return
        averages = {name: slot["shadow"] for name, slot in state.hooks.items() if _is_average(slot)}
        if self.of not in averages:
            msg = f"{self.name!r} could not find of={self.of!r}; this pipeline keeps the averages {sorted(averages)}"
            raise KeyError(msg)
        weights, shadow = state.params[self.model_key], averages[self.of]
        common = weights.keys() & shadow.keys()
        odd = sorted(name for name in common if weights[name].shape != shadow[name].shape)
        if odd or (shadow and weights and not common):
            msg = (
                f"{self.name!r}: {self.of!r} is no average of model {self.model_key!r} (see {odd or sorted(shadow)}); "
            )
            raise ValueError(msg + "give model_key= of the model that it averages")

    def _score(self, summary: Mapping[str, Any], like: Number) -> Number:
        """Return the score as a number like the one that is kept."""
        if self.metric not in summary:
            msg = f"{self.name!r} could not find metric={self.metric!r}; the validation summary has {sorted(summary)}"
            raise KeyError(msg)
        value = summary[self.metric]
        return wide(value, like).to(like.device, like.dtype) if isinstance(like, Tensor) else float(value)

    def _is_better(self, score: Number, slot: Any) -> Flag:
        """Compare; NaN compares with nothing, itself included."""
        gained: Any = score > slot["score"] if self.mode == "max" else score < slot["score"]
        return both(equal(score, score), either(equal(slot["kept"], 0), gained))

    def _taken(self, state: TrainState, slot: Any, score: Number) -> Any:
        """Return a slot that keeps what was validated; new tensors, so that half of them is never kept."""
        raw = _raw(state, self.model_key)
        shown: Any = (raw, raw) if self.of is None else _of_slot(state.slot(self.of), raw)
        averaged: Flag = False if self.of is None else state.slot(self.of)["n_averaged"] > 0
        parts = {
            kind: select(averaged, _copies(slot[kind], shown[1][place]), _copies(slot[kind], shown[0][place]))
            for place, kind in enumerate(("weights", "buffers"))
        }
        numbers = {"score": score, "step": state.clock.step, "epoch": state.clock.epoch, "averaged": averaged}
        return slot | {**parts, **numbers, "kept": slot["kept"] + 1}


def _is_average(slot: Any) -> bool:
    return isinstance(slot, Mapping) and "shadow" in slot and "n_averaged" in slot


def _raw(state: TrainState, key: str) -> tuple[FrozenMap[Tensor], FrozenMap[Tensor]]:
    """Return parameters and buffers of a model."""
    return state.params[key], state.buffers.get(key, FrozenMap())


def _of_slot(slot: Any, raw: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the raw tensors, and those tensors under the averages that there are."""
    return raw, (raw[0] | slot["shadow"], raw[1] | slot["buffers"])


def _copies(like: FrozenMap[Tensor], found: Mapping[str, Tensor]) -> Callable[[], FrozenMap[Tensor]]:
    """Return what copies tensors to where others are, in their dtypes."""
    return lambda: FrozenMap({n: found[n].detach().to(leaf.device, leaf.dtype, copy=True) for n, leaf in like.items()})
