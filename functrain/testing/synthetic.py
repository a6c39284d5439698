"""Hooks that nobody would write, and that keep the contract all the same."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from functrain import FrozenMap, Hook, Outcome, Stage, TrainState
from functrain._gradients import multiplied
from functrain._select import Flag, select

VERDICTS = ("proceed", "veto", "tensor", "tensor veto", "by loss", "contrary")


class Synthetic(Hook):
    """A lawful hook of drawn habits: how it votes, and what of the state it moves."""

    verdict: str = "proceed"
    factor: float = 1.0
    counts: bool = False
    decays: bool = False
    tells: bool = False

    def init(self, state: TrainState) -> Any:  # noqa: ARG002 - needs nothing of it
        """Keep a counter and an empty mapping."""
        nothing: dict[str, int] = {}
        return FrozenMap({"count": 0, "nothing": nothing})

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Move what the habits say, then vote."""
        if self.counts:
            slot = state.hooks[self.name]
            state = state.with_slot(self.name, slot | {"count": slot["count"] + 1})
        if self.tells:
            state = state.with_metrics({f"{self.name}_loss": state.loss})
        if stage is Stage.DO_OPTIMIZER_STEP and self.decays:
            halved = multiplied(state.replace(donated=False), 0.5)
            state = select(will_skip, lambda: state, lambda: state.replace(grads=halved.grads))
        return Outcome(state, self._vote(state, will_skip), state.loss * self.factor)

    def _vote(self, state: TrainState, will_skip: Flag) -> Flag:
        """Vote by a fixed verdict, by the loss, or against what was heard."""
        match self.verdict:
            case "proceed" | "veto":
                return self.verdict == "proceed"
            case "tensor" | "tensor veto":
                return torch.tensor(self.verdict == "tensor")
            case "by loss":
                return state.loss.detach() > 0
            case _:
                return will_skip


@st.composite
def synthetic_hooks(draw: st.DrawFn, name: str = "synthetic") -> Hook:
    """Draw a lawful hook with any priority and any stages."""
    decays, tells = draw(st.booleans()), draw(st.booleans())
    return Synthetic(
        name=name,
        priority=draw(st.integers(0, 60)),
        stages=draw(st.frozensets(st.sampled_from(Stage), min_size=1)),
        writes={"grads"} if decays else frozenset(),  # pyright: ignore[reportArgumentType] - any iterable is taken
        publishes={f"{name}_loss"} if tells else frozenset(),  # pyright: ignore[reportArgumentType]
        verdict=draw(st.sampled_from(VERDICTS)),
        factor=draw(st.sampled_from([1.0, 0.5, 2.0])),
        counts=draw(st.booleans()),
        decays=decays,
        tells=tells,
    )
