"""Hooks that write what they were given, or remember what is not in the state."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from pydantic import PrivateAttr

from functrain import FrozenMap, Hook, Outcome, Stage, TrainState
from tests.testing.broken.making import AFTER, BACKWARD, Broken, bad, tensors_of, with_slot

DEFAULT = torch.zeros(2)
BOTH = {"params", "grads"}


def in_place(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Write into the weights."""
    for weight in tensors_of(state, "params"):
        weight.add_(1.0)
    return state, True, state.loss


def through_data(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Write into the weights so that no version counter moves."""
    for weight in tensors_of(state, "params"):
        weight.data.add_(1.0)
    return state, True, state.loss


def statistics(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Let a normalisation write into the buffers, which it does without a version either."""
    torch.nn.functional.batch_norm(torch.eye(2), state.buffers["main"]["mean"], torch.ones(2), training=True)
    return state, True, state.loss


def into_a_container(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Write into a mapping."""
    state.hooks["bad"]._data.update(n=state.hooks["bad"]["n"] + 1)
    return state, True, state.loss


class Counting(Hook):
    """A hook with a counter on the object."""

    stages: Any = frozenset({BACKWARD})
    _calls: int = PrivateAttr(default=0)

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        """Count, and tell nobody until the thousandth call."""
        self._calls += 1
        return Outcome(state, True, state.loss * 2 if self._calls > 10**6 else state.loss)


def counting() -> Any:
    """Return a function with a counter that it has closed over."""
    calls: list[int] = []

    def count(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        calls.append(1)
        return state, len(calls) % 1000 != 0, state.loss

    return bad(count)()


def drawing(draw: Any) -> Any:
    """Return what makes a hook that adds noise to the loss."""
    return bad(lambda state, _stage, _skip: (state, True, state.loss + draw()), BACKWARD)


def keep_gradient(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Keep the very tensors of the gradients."""
    return state.with_slot("bad", FrozenMap(dict(state.grads["main"]))), True, state.loss


def constant(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Put one tensor of the module into every state."""
    return with_slot(state, t=DEFAULT), True, state.loss


def two_places(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Put one new tensor into two places."""
    new = torch.ones(2)
    return state.with_slot("bad", FrozenMap({"a": new, "b": new})), True, state.loss


def two(_: TrainState) -> Any:
    """Build a slot of two tensors."""
    return FrozenMap({"a": torch.zeros(2), "b": torch.zeros(2)})


def like_gradients(state: TrainState) -> Any:
    """Build a slot of tensors like the gradients."""
    return FrozenMap({name: torch.zeros_like(grad) for name, grad in state.grads["main"].items()})


def keep(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Do nothing."""
    return state, True, state.loss


L2 = "L2 purity"
CASES = {
    "in place": Broken(L2, bad(in_place, writes=BOTH)),
    "through .data": Broken(L2, bad(through_data, writes=BOTH)),
    "as BatchNorm does": Broken(L2, bad(statistics, writes={"buffers"})),
    "into a container": Broken(L2, bad(into_a_container)),
    "a counter on the object": Broken(L2, Counting),
    "a counter in a closure": Broken(L2, counting),
    "torch's generator": Broken(L2, drawing(lambda: torch.rand(()))),
    "Python's generator": Broken(L2, drawing(random.random)),
    "numpy's generator": Broken(L2, drawing(lambda: float(np.random.rand()))),  # noqa: NPY002 - the global one
    "the clock on the wall": Broken(L2, drawing(time.perf_counter)),
    "the gradient itself in the slot": Broken(L2, bad(keep_gradient, init=like_gradients)),
    "a shared default": Broken(L2, bad(keep, init=lambda _: FrozenMap({"t": DEFAULT}))),
    "the weights themselves in the slot": Broken(L2, bad(keep, init=lambda state: state.params["main"])),
    "a constant in every state": Broken(L2, bad(constant, AFTER)),
    "one tensor in two places": Broken(L2, bad(two_places, AFTER, init=two)),
}
