"""What the loss scale must do to gradients: nothing, in the end."""

from __future__ import annotations

import torch
from torch import Tensor

from functrain import Hook, MixedPrecision
from functrain._scaler import rescaled, unscaled
from functrain._tree import map_leaves, paths
from functrain.testing.breach import Breach
from functrain.testing.forms import bits, in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene


def is_precision(hook: Hook) -> bool:
    """Tell mixed precision that is in no wrapper."""
    return isinstance(hook, MixedPrecision)


def check_unscaling(scene: Scene) -> None:
    """Check that gradients that are scaled by a power of two and unscaled are what they were."""
    state = in_form(scene.state, scene.form)
    back = unscaled(rescaled(state))
    ours, theirs = paths(state.grads, "state.grads"), paths(back.grads, "state.grads")
    large = paths(map_leaves(_in_range, rescaled(state).grads), "state.grads")
    for path, grad in ours.items():
        if bool(large[path].all()) and bool(_in_range(grad).all()) and bits(grad) != bits(theirs[path]):
            raise Breach("unscaled after scaled is another gradient", path, grad, theirs[path])


def _in_range(grad: Tensor) -> Tensor:
    """Tell which elements are exact in their dtype: zero, or neither subnormal nor infinite."""
    part = torch.view_as_real(grad) if grad.is_complex() else grad
    return (part == 0) | ((part.abs() >= torch.finfo(part.dtype).tiny) & part.isfinite())


UNSCALING = Law(
    "scaler: identity", "unscale after scale is the identity for powers of two", check_unscaling, is_precision
)
