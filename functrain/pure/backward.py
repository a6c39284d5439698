"""Forward, DO_BACKWARD and the gradient of a micro-batch, inside one ``torch.func.grad``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from functrain import _scaler, _tree
from functrain._fold import Pipeline
from functrain._foreach import scaled
from functrain._select import Flag, equal, select
from functrain._stage import Stage
from functrain._state import TrainState
from functrain._tree import FrozenMap, thaw
from functrain.pure.gate import gated
from functrain.pure.loss_call import called
from functrain.pure.noise import Noise
from functrain.pure.numbers import tensored
from functrain.pure.protocol import takes_noise

Through: TypeAlias = Callable[[FrozenMap[Any]], FrozenMap[Any]]


class Found(NamedTuple):
    """What comes out of the differentiated function beside its value."""

    state: TrainState
    enters: Flag


def backward(pipeline: Pipeline, loss_fn: Callable[..., Any], state: TrainState, *, differentiable: bool) -> TrainState:
    """Return the state after the backward of a micro-batch: gradients added, or, dropped, everything as it was."""
    # What flows back from later steps must be finite; the gradient of this step itself is judged by the hooks.
    params = _tree.map_leaves(gated, state.params) if differentiable else state.params
    grads, found = gradients(pipeline, loss_fn, state.replace(params=params))
    losses = {name: _kept(getattr(found.state, name), state.loss, differentiable) for name in ("loss", "raw_loss")}
    # Of two equal results a compiler makes one tensor, and compiles again when the next step is given it twice.
    losses["raw_loss"] = losses["raw_loss"].clone()
    after = found.state.replace(params=state.params, batch=state.batch, **losses)
    entered = _entered(after, grads)
    dropped = after.replace(buffers=state.buffers)
    return tensored(select(found.enters, lambda: entered, lambda: dropped), state.rng.device)


def gradients(
    pipeline: Pipeline, loss_fn: Callable[..., Any], state: TrainState, through: Through | None = None
) -> tuple[FrozenMap[Any], Found]:
    """Return the gradients of the final loss, and what forward and fold have left.

    Args:
        pipeline: what is folded at DO_BACKWARD.
        loss_fn: the loss.
        state: with the batch; its ``grads`` say which parameters are differentiated.
        through: what those pass on their way into the loss.
    """

    def final_loss(live: FrozenMap[Any]) -> tuple[Tensor, Found]:
        live = through(live) if through else live
        params = FrozenMap({model: held | live[model] for model, held in state.params.items()})
        found = _folded(pipeline, loss_fn, state.replace(params=params))
        return _as_wanted(found.state), found

    kept = {model: {name: state.params[model][name] for name in held} for model, held in state.grads.items()}
    return torch.func.grad(final_loss, has_aux=True)(FrozenMap(kept))


def _folded(pipeline: Pipeline, loss_fn: Callable[..., Any], state: TrainState) -> Found:
    """Run the forward and the fold of DO_BACKWARD."""
    with _autocast(state):
        loss, buffers = evaluated(loss_fn, state)
    state = state.replace(loss=loss, raw_loss=loss, buffers=buffers)
    outcome = pipeline.update(state, Stage.DO_BACKWARD, will_skip=False)
    # Only tensors may leave a differentiated function, and the batch may hold anything.
    after = outcome.state.replace(batch=FrozenMap())
    return Found(*tensored((after, outcome.proceed), state.rng.device))


def evaluated(loss_fn: Callable[..., Any], state: TrainState) -> tuple[Tensor, FrozenMap[Any]]:
    """Return the loss of a state's batch, and the buffers after it."""
    noise = (Noise(state.rng, state.clock.batch),) if takes_noise(loss_fn) else ()  # pyright: ignore[reportArgumentType]
    return called(loss_fn, state.params, state.buffers, thaw(state.batch), *noise)


def _as_wanted(state: TrainState) -> Tensor:
    """Return the loss as window and scaler want it: divided or weighted, then scaled."""
    window = state.window
    loss = select(window.weighted, lambda: scaled(state.loss, window.weight), lambda: state.loss / window.divisor)
    return scaled(loss, state.scaler["scale"]) if state.scaler else loss


def _entered(state: TrainState, grads: FrozenMap[Any]) -> TrainState:
    """Return the state with the micro-batch in its window; kept gradients get the scale of the new ones first."""
    kept = state
    first = equal(state.window.entered, 0)
    if state.scaler:
        kept = select(first, lambda: _scaler.rescaled(state), lambda: state)
    summed = _tree.map_leaves(torch.add, kept.grads, grads)
    return state.replace(grads=summed, window=state.window.with_entry())


def _kept(loss: Tensor, like: Tensor, differentiable: bool) -> Tensor:
    """Return a loss in the state's own dtype, without its graph unless later steps are differentiated through it."""
    return (loss if differentiable else loss.detach()).to(like.dtype)


def _autocast(state: TrainState) -> AbstractContextManager[Any]:
    """Return the autocast of the pipeline's precision."""
    if state.autocast is None:
        return nullcontext()
    return torch.autocast(state.rng.device.type, state.autocast)
