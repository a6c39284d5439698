"""L1: what a hook returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from functrain import Outcome, Stage
from functrain._tree import map_leaves
from functrain.testing.breach import Breach, HookFailed
from functrain.testing.forms import cloned, in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene


def check_contract(scene: Scene) -> None:
    """Check what comes back, and that a loss on its way to the backward keeps its graph."""
    try:
        outcome = scene.run()
    except HookFailed as failure:
        _blame(scene, failure)
        return
    _check_parts(outcome)
    if scene.stage is Stage.DO_BACKWARD:
        _check_loss(scene, outcome.loss)


def _blame(scene: Scene, failure: HookFailed) -> None:
    """Raise what the hook raised, unless it does so only on tensors, which is the matter of another law."""
    if scene.form == "tensor":
        try:
            replace(scene, form="python").run()
        except HookFailed:
            pass
        else:
            return
    raise Breach(f"the hook failed: {failure}") from failure.__cause__


def _check_parts(outcome: Outcome) -> None:
    proceed, loss = outcome.proceed, outcome.loss
    is_flag = isinstance(proceed, Tensor) and proceed.dtype is torch.bool and proceed.ndim == 0
    if type(proceed) is not bool and not is_flag:
        raise Breach("no verdict", "proceed", "a bool or a 0-d bool tensor", proceed)
    if loss is not None and (not isinstance(loss, Tensor) or loss.ndim):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Breach("no loss", "loss", "a scalar tensor or None", loss)


def _check_loss(scene: Scene, loss: Tensor | None) -> None:
    """Call the hook once more as an interpreter does, with a loss that has a graph."""
    if loss is None:
        raise Breach("the loss was dropped", "loss", "a scalar tensor", loss)
    state = map_leaves(_differentiable, cloned(in_form(scene.state, scene.form)))
    with torch.enable_grad():
        state = state.replace(loss=state.loss * 1.0)
        will_skip = torch.tensor(scene.will_skip) if scene.form == "tensor" else scene.will_skip
        try:
            after: Any = Outcome(*scene.hook(state, scene.stage, will_skip)).loss
        except Exception as error:
            raise Breach(f"the hook failed on a loss with a graph: {error}") from error
    if not (isinstance(after, Tensor) and after.requires_grad):
        raise Breach("the loss lost its graph", "loss", "a loss that can be differentiated", after)


def _differentiable(leaf: Any) -> Any:
    """Return a leaf that has a gradient, if it can have one; numbers in the form of tensors stay numbers."""
    may = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype is not torch.float64
    return leaf.requires_grad_() if may else leaf


CONTRACT = Law("L1 contract", "returns (TrainState, bool or 0-d bool tensor, scalar tensor or None)", check_contract)
