"""Hooks that return what nobody can use, act where they claim nothing, or change what is not theirs."""

from __future__ import annotations

from typing import Any

import torch

from functrain import EMA, Hook, Outcome, Stage, TrainState
from tests.testing.broken.making import BACKWARD, STEP, Broken, bad, mapped


def explode(_state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Raise."""
    msg = "no such luck"
    raise LookupError(msg)


class Everywhere(Hook):
    """A hook that acts outside its claims."""

    def __call__(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Act at any stage."""
        return Outcome(state.replace(loss=state.loss + 1.0), True, state.loss)


class VotesEverywhere(Hook):
    """A hook that vetoes outside its claims."""

    def __call__(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Veto at any stage."""
        return Outcome(state, False, state.loss)


class Eager(EMA):
    """An average that follows steps that were skipped."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Copy the weights, moved."""
        held = {name: leaf.float() + 1.0 for name, leaf in state.params["main"].items()}
        own = state.hooks[self.name]
        return Outcome(state.with_slot(self.name, own | {"shadow": own["shadow"] | held}), True, state.loss)


def rewrite_vetoes(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Claim that nobody has vetoed."""
    nobody = {stage: dict.fromkeys(held, True) for stage, held in state.vetoes.items()}
    return state.replace(vetoes=nobody), True, state.loss


CASES = {
    "an int as verdict": Broken("L1 contract", bad(lambda s, _g, _w: (s, 1, s.loss))),
    "None as verdict": Broken("L1 contract", bad(lambda s, _g, _w: (s, None, s.loss))),
    "a verdict per element": Broken("L1 contract", bad(lambda s, _g, _w: (s, torch.tensor([True]), s.loss))),
    "a loss per element": Broken("L1 contract", bad(lambda s, _g, _w: (s, True, s.loss.expand(2)), BACKWARD)),
    "a Python number as loss": Broken("L1 contract", bad(lambda s, _g, _w: (s, True, 0.0), BACKWARD)),
    "the loss dropped": Broken("L1 contract", bad(lambda s, _g, _w: (s, True, None), BACKWARD)),
    "the loss detached": Broken("L1 contract", bad(lambda s, _g, _w: (s, True, s.loss.detach()), BACKWARD)),
    "a forgotten return": Broken("L1 contract", bad(lambda _s, _g, _w: None)),
    "no state": Broken("L1 contract", bad(lambda s, _g, _w: (s.params, True, s.loss))),
    "an exception": Broken("L1 contract", bad(explode)),
    "acting everywhere": Broken("L4 locality", lambda: Everywhere(name="bad", stages=STEP)),
    "voting everywhere": Broken("L4 locality", lambda: VotesEverywhere(name="bad", stages=STEP)),
    "weights undeclared": Broken(
        "L5 frame", bad(lambda s, _g, _w: (mapped(s, "params", lambda t: t + 1), True, s.loss))
    ),
    "vetoes rewritten": Broken("L5 frame", bad(rewrite_vetoes)),
    "the window rewritten": Broken(
        "L5 frame",
        bad(lambda s, _g, _w: (s.replace(window=s.window.replace(divisor=s.window.divisor + 1)), True, s.loss)),
    ),
    "the clock set": Broken(
        "L5 frame", bad(lambda s, _g, _w: (s.replace(clock=s.clock.replace(step=s.clock.step + 1)), True, s.loss))
    ),
    "will_skip ignored": Broken(
        "L6 veto safety", bad(lambda s, _g, _w: (mapped(s, "grads", lambda t: t + 1), True, s.loss), writes={"grads"})
    ),
    "decay at a vetoed step": Broken(
        "L6 veto safety",
        bad(lambda s, _g, _w: (mapped(s, "params", lambda t: t * 0.5), True, s.loss), writes={"params"}),
    ),
    "an average of no step": Broken("L6 veto safety", Eager),
}
