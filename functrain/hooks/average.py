"""What every average of weights shares: when it moves, what it follows, and where it is kept."""

from __future__ import annotations

from functools import reduce
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, StringConstraints
from torch import Tensor

from functrain._hook import Hook, Outcome, Stages
from functrain._restriction import Selector, chosen
from functrain._select import Flag, Number, both, either, equal, is_multiple, negate, select
from functrain._stage import Stage
from functrain._state import EMPTY, TrainState
from functrain._tree import FrozenMap
from functrain.hooks.average_place import named_device, require_device
from functrain.hooks.shadow import Seen, as_they_are, followed, move_, paired, shadow_of, where_finite

ModelKey = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _selector(value: Any) -> Any:
    """Take a pattern or a function."""
    if value is None or callable(value) or (isinstance(value, str) and value):
        return value
    msg = f'parameters must be a pattern such as "head.*" or a function (model_key, name) -> bool, got {value!r}'
    raise ValueError(msg)


class Average(Hook):
    """After each eligible step the shadow moves towards the weights: shadow <- lerp(shadow, weight, w).

    Eligible: an optimizer of the model stepped, ``completed >= start_step`` and ``completed % update_every == 0``;
    ``completed`` counts the model's own steps, this one included. The first update copies. Members of the family say
    what ``w`` is, in :meth:`weight`, and which numbers of it are lifted into the slot, in :meth:`numbers`.

    Stages: AFTER_OPTIMIZER_STEP. Writes its slot only. Never vetoes.

    Attributes:
        model_key: the model to average.
        update_every: steps from one update to the next.
        start_step: first eligible step.
        use_buffers: average float buffers, too; False copies them. Other buffers are always copied.
        num_updates: where the count of updates starts.
        parameters: which ones, a pattern or ``(model_key, name) -> bool``; None takes all.
        dtype: what the shadow is kept in at least; None keeps fp32 over bf16 and fp16, and else the weight's own.
        device: where the shadow is kept; None stays with the weight. In the shell nothing waits for a transfer.
        finite_only: leave the shadow as it is wherever the weight is not finite.
    """

    model_key: ModelKey = "main"
    update_every: Annotated[int, Field(gt=0)] = 1
    start_step: Annotated[int, Field(ge=0)] = 0
    use_buffers: bool = True
    num_updates: Annotated[int, Field(ge=0)] = 0
    parameters: Annotated[Selector | None, BeforeValidator(_selector)] = None
    dtype: Literal["float32", "float64"] | None = None
    device: Annotated[str | None, BeforeValidator(named_device)] = None
    finite_only: bool = False
    stages: Stages = frozenset({Stage.AFTER_OPTIMIZER_STEP})

    family: ClassVar[str] = "average"

    def default_name(self) -> str:
        """Return the name of the family, with the model's key unless that is "main"."""
        return self.family if self.model_key == "main" else f"{self.family}_{self.model_key}"

    def numbers(self) -> dict[str, float]:
        """Return the numbers that are lifted into the slot."""
        return {}

    def weight(self, slot: Any) -> Number:
        """Return by how much the shadow moves; the slot counts the step under way and not yet the update."""
        raise NotImplementedError

    def copies(self, slot: Any) -> Flag:
        """Tell whether this update is a copy: the first one."""
        return equal(slot["n_averaged"], 0)

    def remembered(self, slot: Any) -> dict[str, Number]:  # noqa: ARG002 - for overriding
        """Return what an update changes among the numbers of the slot, beside the counts."""
        return {}

    def init(self, state: TrainState) -> Any:
        """Build the shadow, without counting an update.

        Raises:
            KeyError: no such model; lists those there are.
            ValueError: a selector that takes no parameter, or a device that is not there.
        """
        if self.model_key not in state.params:
            msg = f"{self.name!r} could not find model_key={self.model_key!r}; the models are {sorted(state.params)}"
            raise KeyError(msg)
        require_device(self.name, self.device)
        steps = [state.clock.optimizer_steps.get(key, 0) for key in state.owners.of_model(self.model_key)]
        counts = {"n_averaged": 0, "num_updates": self.num_updates, "completed": max(steps, default=0)}
        kept = None if self.dtype is None else getattr(torch, self.dtype)
        weights, buffers = self._selected(state), state.buffers.get(self.model_key, FrozenMap())
        shadows = {"shadow": shadow_of(weights, kept, self.device), "buffers": shadow_of(buffers, kept, self.device)}
        return FrozenMap({**self.numbers(), **counts, **shadows})

    def _selected(self, state: TrainState) -> FrozenMap[Any]:
        """Return the parameters that are averaged."""
        weights = state.params[self.model_key]
        if (selector := self.parameters) is None:
            return weights
        taken = {name: leaf for name, leaf in weights.items() if chosen(selector, self.model_key, name)}
        if weights and not taken:
            msg = f"{self.name!r}: parameters={selector!r} takes none of {self.model_key!r}, which has {list(weights)}"
            raise ValueError(msg)
        return FrozenMap(taken)

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:  # noqa: ARG002 - claims one stage
        """Count the model's step and, where eligible, move the shadow."""
        stepped = self._stepped(state)
        if will_skip is not False:
            stepped = both(negate(will_skip), stepped)
        if stepped is False:
            return Outcome(state, True, state.loss)
        slot = state.hooks[self.name]
        slot = slot | {"completed": slot["completed"] + stepped}
        due = self.due(slot) if stepped is True else both(stepped, self.due(slot))
        if due is True and state.donated:
            return self._moved_(state, slot)
        averaged = slot if due is False else select(due, lambda: self._averaged(slot, state), lambda: slot)
        return Outcome(self.followed_up(state.with_slot(self.name, averaged), stepped), True, state.loss)

    def due(self, slot: Any) -> Flag:
        """Tell whether the step just counted is one at which the shadow moves."""
        if self.update_every == 1 and not self.start_step:
            return True
        completed = slot["completed"]
        return both(completed >= self.start_step, is_multiple(completed, self.update_every))

    def followed_up(self, state: TrainState, stepped: Flag) -> TrainState:  # noqa: ARG002 - for overriding
        """Return the state after what else a step brings, once the slot is up to date."""
        return state

    def _stepped(self, state: TrainState) -> Flag:
        """Tell whether an optimizer of the model stepped; a model that no optimizer holds follows any step."""
        for flag in state.stepped.values():
            if flag is not True:
                break
        else:
            return True
        own = [state.stepped[key] for key in state.owners.of_model(self.model_key) if key in state.stepped]
        return reduce(either, own) if own else True

    def _averaged(self, slot: Any, state: TrainState) -> Any:
        """Return the slot after an update, with a new shadow."""
        copies, weight = self.copies(slot), self.weight(slot)
        weights, buffers, seen = self._followed(state)
        return self._counted(
            slot,
            followed(slot["shadow"], weights, weight, copies, seen),
            followed(slot["buffers"], buffers, weight, copies if self.use_buffers else True, seen),
        )

    def _moved_(self, state: TrainState, slot: Any) -> Outcome:
        """Update a donated shadow in place, last of all: on a CPU what follows finds the caches full of weights."""
        copies, weight = self.copies(slot), self.weight(slot)
        weights, buffers, seen = self._followed(state)
        shadow, pairs = paired(slot["shadow"], weights, seen)
        others, other_pairs = paired(slot["buffers"], buffers, seen)
        after = state.with_slot(self.name, self._counted(slot, shadow, others))
        if other_pairs:
            move_(other_pairs, weight, copies if self.use_buffers else True)
        move_(pairs, weight, copies)
        return Outcome(self.followed_up(after, True), True, state.loss)

    def _followed(self, state: TrainState) -> tuple[FrozenMap[Tensor], FrozenMap[Tensor], Seen]:
        """Return the weights and the buffers that are followed, and what is seen of them."""
        weights, buffers = state.params[self.model_key], state.buffers.get(self.model_key, EMPTY)
        return weights, buffers, where_finite if self.finite_only else as_they_are

    def _counted(self, slot: Any, shadow: FrozenMap[Tensor], buffers: FrozenMap[Tensor]) -> Any:
        """Return the slot with what an update changes of it."""
        counts = {"n_averaged": slot["n_averaged"] + 1, "num_updates": slot["num_updates"] + 1}
        return slot | {"shadow": shadow, "buffers": buffers, **counts, **self.remembered(slot)}
