"""Hooks that change the structure, cannot be traced, are no data, or know how they are run."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from functrain import FrozenMap, Hook, Pipeline, Stage, TrainState, fold, hook
from tests.testing.broken.making import BACKWARD, Broken, bad, mapped, with_slot


def branch(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Decide by a tensor."""
    return state, True, state.loss * 2 if state.loss > 0 else state.loss


def read(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Ask the device."""
    return state, state.loss.item() < 1e30, state.loss


def some(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Let the shape depend on the data."""
    x = state.batch["x"]
    return state, True, state.loss + x[x > 0].sum()


def python_only(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Ask a counter for what only an int has."""
    return state, state.clock.step.bit_length() < 99, state.loss


def by_form(state: TrainState, _stage: Stage, skip: Any) -> Any:
    """Vote differently for a tensor."""
    return state, not isinstance(skip, Tensor), state.loss


def in_single(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Divide two counts, which as tensors are a float32."""
    return with_slot(state, n=(state.clock.step + 1) / 3 + state.hooks["bad"]["n"] * 0), True, state.loss


def where_donated(state: TrainState, _stage: Stage, skip: Any) -> Any:
    """Halve gradients where donated, and leave them elsewhere."""
    if state.donated and skip is False:
        for held in state.grads.values():
            for grad in held.values():
                grad.mul_(0.5)
    return state, True, state.loss


def keep(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Do nothing."""
    return state, True, state.loss


class Locked(Hook):
    """A hook that holds what cannot be saved."""

    lock: Any = None


class Shortcut(Pipeline):
    """A fold that stops at the first veto."""

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Any:
        """Leave early."""
        for each in self.hooks:
            if stage in each.stages and not each(state, stage, will_skip).proceed:
                return state, False, state.loss
        return state, True, state.loss


def shortcut() -> Hook:
    """Return a pipeline that forgets what came in."""
    whole = fold(hook(keep, name="a"), hook(keep, name="b"))
    return Shortcut(name="pipeline", hooks=whole.hooks, stages=whole.stages, writes=whole.writes)


def of_the_shell(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Look at what only the pure engine keeps in the state."""
    return state, True, state.loss if len(state.opt) else state.loss * 2


def grown(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Let a history grow."""
    return with_slot(state, t=torch.cat([state.hooks["bad"]["t"], torch.zeros(1)])), True, state.loss


def flipped(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Change the dtype of a tensor at every step, so that each step is another graph."""
    old = state.hooks["bad"]["t"]
    return with_slot(state, t=old.to(torch.float64 if old.dtype is torch.float32 else torch.float32)), True, state.loss


CASES = {
    "a graph for every step": Broken("L7 traceable", bad(flipped)),
    "a new key": Broken("L3 structure", bad(lambda s, _g, _w: (with_slot(s, m=1), True, s.loss))),
    "a key that goes": Broken(
        "L3 structure", bad(lambda s, _g, _w: (s.with_slot("bad", FrozenMap({"n": 0})), True, s.loss))
    ),
    "a drifting dtype": Broken(
        "L3 structure", bad(lambda s, _g, _w: (with_slot(s, t=s.hooks["bad"]["t"].double()), True, s.loss))
    ),
    "a growing history": Broken("L3 structure", bad(grown)),
    "a count that becomes real": Broken(
        "L3 structure", bad(lambda s, _g, _w: (with_slot(s, n=s.hooks["bad"]["n"] * 0.5), True, s.loss))
    ),
    "a static field": Broken("L3 structure", bad(lambda s, _g, _w: (s.replace(rank=s.rank + 1), True, s.loss))),
    "gradients in double": Broken(
        "L3 structure",
        bad(lambda s, _g, w: (s if w is True else mapped(s, "grads", Tensor.double), True, s.loss), writes={"grads"}),
    ),
    "a metric that nobody knew": Broken(
        "L3 structure", bad(lambda s, _g, _w: (s.with_metrics({"late": s.loss}), True, s.loss), publishes={"early"})
    ),
    "a branch on data": Broken("L7 traceable", bad(branch, BACKWARD)),
    "a value read": Broken("L7 traceable", bad(read)),
    "a branch on data, in lanes": Broken("L8 vmap", bad(branch, BACKWARD)),
    "a shape that depends on data": Broken("L8 vmap", bad(some, BACKWARD)),
    "a text in the slot": Broken("L9 round trip", bad(keep, init=lambda _: FrozenMap({"mode": "on"}))),
    "a lock in the configuration": Broken("L9 round trip", lambda: Locked(lock=threading.Lock())),
    "a pipeline that stops early": Broken("L10 fold", shortcut),
    "another thing in the shell": Broken("L13 agreement", bad(of_the_shell, BACKWARD)),
    "in place where donated": Broken("L14 donation", bad(where_donated, writes={"grads"})),
    "for Python numbers only": Broken("forms", bad(python_only)),
    "by form": Broken("forms", bad(by_form)),
    "a quotient in single precision": Broken("forms", bad(in_single, BACKWARD, init=lambda _: FrozenMap({"n": 0.0}))),
}
