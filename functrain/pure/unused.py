"""Parameters that the loss does not use: as in torch they have no gradient, so nothing moves or decays them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from functrain._fold import Pipeline
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.pure.backward import gradients

Place: TypeAlias = tuple[str, str]
"""Model key and name of a parameter."""


class _Marked(torch.autograd.Function):
    """Identity that notes in ``reached`` that a gradient came back: ``torch.func.grad`` gives zeros for none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, place: Place, reached: set[Place]) -> Tensor:  # noqa: ARG004 - as torch calls it
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004 - as torch calls it
        _, ctx.place, ctx.reached = inputs
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, None, None]:
        (cotangent,) = cotangents
        if cotangent is not None:
            ctx.reached.add(ctx.place)
        return cotangent, None, None


def unused(pipeline: Pipeline, loss_fn: Callable[..., Any], state: TrainState) -> list[Place]:
    """Return the trained parameters that no gradient reaches, from the loss or from what hooks add to it.

    Runs the loss once, as a step would; nothing of it is kept.

    Args:
        pipeline: its hooks may add to the loss at DO_BACKWARD.
        loss_fn: the loss.
        state: as a micro-batch finds it, with its batch.

    Raises:
        ValueError: the loss uses no parameter at all.
    """
    reached: set[Place] = set()

    def mark(model: str, name: str, leaf: Tensor) -> Tensor:
        return cast("Tensor", _Marked.apply(leaf, (model, name), reached))

    def marked(live: FrozenMap[Any]) -> FrozenMap[Any]:
        return FrozenMap(
            {model: {name: mark(model, name, leaf) for name, leaf in held.items()} for model, held in live.items()}
        )

    gradients(pipeline, loss_fn, state, marked)
    trained = [(model, name) for model, held in state.grads.items() for name in held]
    if trained and not reached:
        msg = "the loss uses none of the parameters, so nothing would be trained; compute it from params"
        raise ValueError(msg)
    return [place for place in trained if place not in reached]


def require_batch(batch: Any) -> None:
    """Refuse to judge without an example batch.

    Raises:
        ValueError: there is none.
    """
    if batch is None:
        msg = (
            "require_all_parameters=True needs an example batch, to see what the loss uses: write "
            "init(params, buffers, batch=batch); for a sweep functools.partial(init, params, buffers, batch=batch)"
        )
        raise ValueError(msg)


def require_none(places: list[Place]) -> None:
    """Refuse unused parameters.

    Raises:
        ValueError: names each of them.

    >>> require_none([("main", "0.weight")])
    Traceback (most recent call last):
    ...
    ValueError: the loss does not use params["main"]["0.weight"]: what has no gradient is never trained, not even ...
    """
    if places:
        named = ", ".join(f'params["{model}"]["{name}"]' for model, name in places)
        msg = (
            f"the loss does not use {named}: what has no gradient is never trained, not even decayed; use it in the "
            "loss, freeze it with requires_grad_(False), take it out of the model, or write "
            "train_step(..., require_all_parameters=False)"
        )
        raise ValueError(msg)
