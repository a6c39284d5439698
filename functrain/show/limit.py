"""The limit that a hook of the library judged by."""

from __future__ import annotations

from typing import Any, NamedTuple

from functrain._hook import Hook
from functrain._select import Flag, Number
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._strict import Watched
from functrain.hooks import ClipNorm, MixedPrecision, SkipSpikes
from functrain.hooks.clip_statistics import LearnedLimit
from functrain.show.kept import kept


class Limit(NamedTuple):
    """What was judged, by what.

    Attributes:
        what: the name of the number.
        value: what it was.
        bound: the largest that would have passed; None of a loss scale, at which gradients are finite or not.

    >>> Limit("loss", 3.0, 2.0).sentence("spikes")
    "loss 3 is not within the limit 2 of 'spikes'"
    """

    what: str
    value: Number
    bound: Number | None

    @property
    def is_exceeded(self) -> bool:
        """Whether the value is above the limit; waits for the device."""
        return self.bound is not None and float(self.value) > float(self.bound)

    def sentence(self, hook: str) -> str:
        """Say so with the numbers."""
        found = f"{self.what} {float(self.value):.4g}"
        if self.bound is None:
            return f"gradients overflowed at {found} of {hook!r}"
        return f"{found} is not within the limit {float(self.bound):.4g} of {hook!r}"


def limit_of(member: Hook, stage: Stage, before: TrainState, after: TrainState, saw: Flag) -> Limit | None:
    """Return the limit of a call, computed where its tensors are; None where a hook judged nothing.

    A class of one's own may judge otherwise than the class it inherits from, and keep another slot: what cannot be said
    is left out, since recording stops no run.

    >>> from functrain import TrainState
    >>> limit_of(Hook(), Stage.DO_OPTIMIZER_STEP, TrainState(), TrainState(), False) is None
    True
    """
    try:
        return _limit_of(member, stage, before, after, saw)
    except Exception:  # noqa: BLE001 - see above
        return None


def _limit_of(member: Hook, stage: Stage, before: TrainState, after: TrainState, saw: Flag) -> Limit | None:
    hook = member.inner if isinstance(member, Watched) else member  # inside other wrappers it may judge less, or not
    if saw is True or stage not in (Stage.DO_BACKWARD, Stage.DO_OPTIMIZER_STEP):
        return None
    if isinstance(hook, SkipSpikes):
        return _of_spikes(hook, stage, before.hooks[member.name], after)
    if stage is Stage.DO_BACKWARD:
        return None
    return _of_gradients(hook, before, after, member.name)


def _of_spikes(hook: SkipSpikes, stage: Stage, slot: Any, after: TrainState) -> Limit | None:
    """Return the limit of a statistic; a loss is judged where it would be dropped, else with its window."""
    if stage is Stage.DO_BACKWARD and not hook.drop:
        return None
    value: Any = after.raw_loss.detach() if stage is Stage.DO_BACKWARD else slot["worst"]
    if hook.of == "grad_norm":
        value = after.metrics.get("grad_norm", float("nan"))
    return Limit(hook.of, kept(value), kept(hook.by.limit(slot["statistic"])))


def _of_gradients(hook: Hook, before: TrainState, after: TrainState, name: str) -> Limit | None:
    """Return the limit of what clips by one norm, or the scale at which gradients overflow."""
    if isinstance(hook, ClipNorm):
        return Limit("grad_norm", after.metrics["grad_norm"], kept(before.hooks[name]["max_norm"]))
    if isinstance(hook, LearnedLimit):
        norm = after.hooks[name]["norm"]
        return Limit("grad_norm", after.metrics["grad_norm"], kept(hook.limit(before.hooks[name], norm)))
    if isinstance(hook, MixedPrecision) and after.scaler:
        return Limit("loss scale", kept(after.scaler["scale"]), None)
    return None
