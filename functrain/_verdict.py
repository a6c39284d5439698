"""What a hook returned, checked before anything acts on it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from functrain._hook import Hook, Outcome
from functrain._select import Number
from functrain._stage import GATED_STAGES, Stage
from functrain._state import TrainState


def checked_outcome(member: Hook, stage: Stage, outcome: Any) -> Outcome:
    """Return what a hook returned as an :class:`Outcome`.

    Raises:
        TypeError: not three values, no TrainState, or at a gated stage ``proceed`` that is no verdict.
    """
    if not isinstance(outcome, tuple) or len(outcome) != len(Outcome._fields):  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError(
            f"{_place(member, stage)} must return (state, proceed, loss); got {_kind(outcome)}. "
            "Return functrain.Outcome(state, True, state.loss) to change nothing."
        )
    state, proceed, loss = outcome  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(state, TrainState):
        raise TypeError(f"{_place(member, stage)} must return a TrainState first; got {_kind(state)}.")
    if stage in GATED_STAGES:
        _check_proceed(member, stage, proceed)
    return Outcome(state, proceed, loss)  # pyright: ignore[reportUnknownArgumentType]


def _check_proceed(member: Hook, stage: Stage, proceed: Any) -> None:
    """Refuse anything but a bool or a 0-d bool tensor; truthiness would hide a forgotten return."""
    if isinstance(proceed, bool) or (isinstance(proceed, Tensor) and proceed.dtype is torch.bool and proceed.ndim == 0):
        return
    raise TypeError(
        f"{_place(member, stage)} must return a bool or a 0-d bool tensor as proceed; got {_kind(proceed)}. "
        "Return True to proceed or False to skip."
    )


def checked_loss(loss: Any, name: str, stage: Stage, remedy: str = "Return state.loss to leave it as it is.") -> Tensor:
    """Return the loss that goes into the backward.

    Raises:
        TypeError: None or no tensor.
        ValueError: a tensor of more than zero dimensions, or a complex one.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(f"{name!r} did not provide a tensor loss at {stage.name}; got {_kind(loss)}. {remedy}")
    if loss.ndim:
        raise ValueError(
            f"{name!r} provided a loss of shape {tuple(loss.shape)} at {stage.name}; a backward needs a scalar. "
            "Reduce it: loss.mean() or loss.sum()."
        )
    if loss.is_complex():
        raise ValueError(
            f"{name!r} provided a complex loss at {stage.name}; a backward needs a real one, which can go down. "
            "Take loss.real or loss.abs()."
        )
    return loss


def checked_weight(weight: Any) -> Number:
    """Return the weight of a micro-batch; the value of a tensor is not asked for.

    Raises:
        TypeError: no number, or a tensor that is no real 0-d one.
        ValueError: negative, infinite or NaN.
    """
    if isinstance(weight, Tensor):
        is_number = weight.ndim == 0 and weight.dtype is not torch.bool and not weight.is_complex()
    else:
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number:
        msg = f"weight must be a number, got {_kind(weight)}"
        raise TypeError(msg)
    if not isinstance(weight, Tensor) and not (weight >= 0 and math.isfinite(weight)):
        msg = f"weight must be finite and at least 0, got {weight}"
        raise ValueError(msg)
    return weight


def _place(member: Hook, stage: Stage) -> str:
    return f"{type(member).__name__} {member.name!r} at {stage.name}"


def _kind(value: Any) -> str:
    """Name the type of a value, with shape and dtype where it is a tensor."""
    if isinstance(value, Tensor):
        return f"a Tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    return type(value).__name__
