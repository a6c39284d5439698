"""Exponential moving averages of the weights."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from functrain._clock import any_of
from functrain._hook import Hook, Outcome, Stages
from functrain._select import Flag, both, is_multiple, negate, select
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.hooks.shadow import follow_, followed, shadow_of

ModelKey = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class EMA(Hook):
    """After each eligible step the shadow moves towards the weights: shadow <- lerp(shadow, weight, 1 - decay).

    Eligible: an optimizer of the model stepped, ``completed >= start_step`` and ``completed % update_every == 0``;
    ``completed`` counts the model's own steps, this one included. The first update copies. The shadow is fp32 over
    bf16 and fp16 weights. Bitwise ``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn``.

    Stages: AFTER_OPTIMIZER_STEP. Writes its slot only. Never vetoes.

    Attributes:
        model_key: the model to average.
        decay: in [0, 1). In the slot as ``decay``.
        update_every: steps from one update to the next.
        start_step: first eligible step.
        use_buffers: average float buffers, too; False copies them. Other buffers are always copied.
        num_updates: where the count of updates starts.

    >>> EMA(model_key="teacher").name
    'ema_teacher'

    See also: ``Shell.averaged``, ``Shell.averaged_module``.
    """

    model_key: ModelKey = "main"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    update_every: Annotated[int, Field(gt=0)] = 1
    start_step: Annotated[int, Field(ge=0)] = 0
    use_buffers: bool = True
    num_updates: Annotated[int, Field(ge=0)] = 0
    stages: Stages = frozenset({Stage.AFTER_OPTIMIZER_STEP})

    def default_name(self) -> str:
        """Return ``ema``, with the model's key unless that is "main"."""
        return "ema" if self.model_key == "main" else f"ema_{self.model_key}"

    def init(self, state: TrainState) -> Any:
        """Build the shadow, without counting an update.

        Raises:
            KeyError: no such model; lists those there are.
        """
        if self.model_key not in state.params:
            msg = f"{self.name!r} could not find model_key={self.model_key!r}; the models are {sorted(state.params)}"
            raise KeyError(msg)
        steps = [state.clock.optimizer_steps.get(key, 0) for key in state.owners.of_model(self.model_key)]
        counts = {"n_averaged": 0, "num_updates": self.num_updates, "completed": max(steps, default=0)}
        weights, buffers = state.params[self.model_key], state.buffers.get(self.model_key, FrozenMap())
        return FrozenMap({"decay": self.decay, **counts, "shadow": shadow_of(weights), "buffers": shadow_of(buffers)})

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - claims one stage
        """Count the model's step and, where eligible, move the shadow."""
        stepped = both(negate(will_skip), self._stepped(state))
        if stepped is False:
            return Outcome(state, True, state.loss)
        slot = state.hooks[self.name]
        completed = slot["completed"] + stepped
        due = both(stepped, both(completed >= self.start_step, is_multiple(completed, self.update_every)))
        averaged = self._averaged_where(due, slot | {"completed": completed}, state)
        return Outcome(state.with_slot(self.name, averaged), True, state.loss)

    def _stepped(self, state: TrainState) -> Flag:
        """Tell whether an optimizer of the model stepped; a model that no optimizer holds follows any step."""
        own = {key: state.stepped[key] for key in state.owners.of_model(self.model_key) if key in state.stepped}
        return any_of(FrozenMap(own)) if own else True

    def _averaged_where(self, due: Flag, slot: Any, state: TrainState) -> Any:
        """Return the averaged slot where due; a tensor computes both, so nothing may be overwritten then."""
        if isinstance(due, bool):
            return self._averaged(slot, state, donated=state.donated) if due else slot
        return select(due, lambda: self._averaged(slot, state, donated=False), lambda: slot)

    def _averaged(self, slot: Any, state: TrainState, *, donated: bool) -> Any:
        """Move shadow and buffers, and count."""
        first, weight = slot["n_averaged"] == 0, 1.0 - slot["decay"]
        move = follow_ if donated else followed
        weights, buffers = state.params[self.model_key], state.buffers.get(self.model_key, FrozenMap())
        moved = {
            "shadow": move(slot["shadow"], weights, weight, first),
            "buffers": move(slot["buffers"], buffers, weight, first if self.use_buffers else True),
        }
        return slot | {**moved, "n_averaged": slot["n_averaged"] + 1, "num_updates": slot["num_updates"] + 1}
