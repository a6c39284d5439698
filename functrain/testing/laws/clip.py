"""What clipping by a limit must do, whatever the limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from functrain import ClipAdaptive, ClipNorm, ClipPercentile, ClipValue, ClipZScore, Hook, Stage, TrainState
from functrain._gradients import owned, total_norm
from functrain._tree import paths
from functrain.testing.breach import Breach
from functrain.testing.law import Law
from functrain.testing.scene import Scene

STEP = Stage.DO_OPTIMIZER_STEP
EPSILON = 1e-6
"""What ``clip_grad_norm_`` adds to the norm, so that clipping again may clip by that much again."""


LARGEST = 1e30
"""Beyond it the factor of a half-precision gradient is subnormal, and rounded as coarsely as those are."""


def clipped(scene: Scene) -> TrainState:
    """Return the state after a step that nobody vetoed."""
    return scene.run(stage=STEP, will_skip=False).state


def is_fixed(hook: Hook) -> bool:
    """Tell a hook that clips to a fixed limit."""
    return isinstance(hook, ClipNorm | ClipValue | ClipAdaptive)


def check_idempotent(scene: Scene) -> None:
    """Check that clipping again changes no gradient by more than torch's 1e-6.

    One that no optimizer holds is scaled by a norm that it is no part of, and may stay longer than the limit.
    """
    once, scene_grads = clipped(scene), _gradients(scene.state)
    twice = clipped(replace(scene, state=once))
    eps = max((_eps(grad) for grad in _gradients(once).values()), default=0.0)  # one norm over all dtypes
    judged = owned(once) if isinstance(scene.hook, ClipNorm) else [("", grad) for grad in _gradients(once).values()]
    within = {id(grad) for _, grad in judged}
    for path, grad in _gradients(once).items():
        if id(grad) not in within:
            continue
        again = _gradients(twice)[path]
        if _size(scene_grads[path]) > LARGEST:
            continue
        if not _within(again, grad, EPSILON + 4 * eps * _size(grad)):
            raise Breach("clipping twice is not clipping once", path, grad, again)


def _gradients(state: TrainState) -> dict[str, Tensor]:
    return paths(state.grads, "state.grads")


def _eps(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps


def _size(tensor: Tensor) -> float:
    """Return the largest finite magnitude."""
    finite = tensor.abs().double().nan_to_num(nan=0.0, posinf=0.0)
    return float(finite.max()) if finite.numel() else 0.0


def _within(found: Tensor, expected: Tensor, distance: float) -> bool:
    return torch.allclose(found, expected, rtol=0.0, atol=distance, equal_nan=True)


def check_direction(scene: Scene) -> None:
    """Check that every gradient is multiplied by one factor between 0 and 1."""
    after = _gradients(clipped(scene))
    pairs = [(path, grad, after[path]) for path, grad in _gradients(scene.state).items() if grad.numel()]
    if not all(bool(grad.isfinite().all()) for _, grad, _ in pairs):
        return
    factor = _factor([(grad, found) for _, grad, found in pairs])
    for path, grad, found in pairs:
        scaled = grad * factor
        slack = 16 * max(_eps(each) for _, each, _ in pairs) * _size(scaled) + float(torch.finfo(grad.dtype).tiny)
        if not -EPSILON <= factor <= 1.0 + EPSILON or not _within(found, scaled, slack):
            raise Breach("not the gradient times one factor between 0 and 1", path, scaled, found)


def _factor(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Return what the largest element of all was multiplied by."""
    elements = [(abs(a), a, b) for grad, found in pairs for a, b in zip(_flat(grad), _flat(found), strict=True)]
    size, before, after = max(elements, key=lambda each: each[0], default=(0.0, 0.0, 0.0))
    return abs(after / before) if size else 1.0


def _flat(tensor: Tensor) -> list[Any]:
    return cast("list[Any]", tensor.reshape(-1).tolist())


def check_bounded(scene: Scene) -> None:
    """Check that what is applied is within the limit, if it is finite at all."""
    state, hook = clipped(scene), scene.hook
    if isinstance(hook, ClipValue):
        _check_elements(state, hook.clip_value)
    elif isinstance(hook, ClipNorm):
        norm = total_norm(state, hook.norm_type)
        slack = 1.0 + 64 * max((_eps(grad) for _, grad in owned(state)), default=0.0)
        if bool(norm.isfinite()) and bool(norm.double() > hook.max_norm * slack + EPSILON):
            raise Breach("the norm is above the limit", "state.grads", hook.max_norm, norm)


def _check_elements(state: TrainState, limit: float) -> None:
    for path, grad in _gradients(state).items():
        bound = torch.tensor(limit).to(grad.dtype)
        if bool(((grad.abs() > bound) & grad.isfinite()).any()):
            raise Breach("an element is above the limit", path, limit, grad)


def _by_norm(hook: Hook) -> bool:
    return isinstance(hook, ClipNorm | ClipPercentile | ClipZScore)


def _has_limit(hook: Hook) -> bool:
    return isinstance(hook, ClipNorm | ClipValue)


IDEMPOTENT = Law("clip: idempotent", "clipping twice is clipping once, up to 1e-6", check_idempotent, is_fixed)
DIRECTION = Law("clip: direction", "every gradient times one factor between 0 and 1", check_direction, _by_norm)
BOUNDED = Law("clip: bounded", "what is applied is at most the limit", check_bounded, _has_limit)
