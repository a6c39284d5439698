"""An optimizer from the arithmetic of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from functrain import _tree
from functrain.pure.protocol import Optimizer


def per_leaf(
    init: Callable[[Any], Any], leaf: Callable[..., tuple[Tensor, ...]], buffers: Sequence[str], hyper: Sequence[str]
) -> Optimizer:
    """Return an optimizer whose step applies ``leaf(grad, param, state, *buffers)`` to every parameter.

    Args:
        init: builds a mapping with the count ``step``, the numbers, and one tree of tensors per buffer.
        leaf: gives the new parameter and the new buffers.
        buffers: names of the trees, in the order in which ``leaf`` takes them.
        hyper: names of the numbers that a sweep may change.
    """

    def step(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        trees = [_tree.leaves(tree) for tree in (grads, params, *(state[name] for name in buffers))]
        moved = [_on_reals(leaf, grad, param, state, *kept) for grad, param, *kept in zip(*trees, strict=True)]
        rebuilt = [_tree.rebuilt(params, [each[place] for each in moved]) for place in range(1 + len(buffers))]
        return rebuilt[0], state | {"step": state["step"] + 1, **dict(zip(buffers, rebuilt[1:], strict=True))}

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        new, state = step(grads, state, params)
        return _tree.map_leaves(torch.sub, new, params), state

    return Optimizer(init, update, step, tuple(hyper))


def _on_reals(
    leaf: Callable[..., tuple[Tensor, ...]], grad: Tensor, param: Tensor, state: Any, *kept: Tensor
) -> tuple[Tensor, ...]:
    """Apply the arithmetic to real and imaginary parts of complex tensors as to two real ones, as torch does."""
    if not param.is_complex():
        return leaf(grad, param, state, *kept)
    pairs = (torch.view_as_real(each.resolve_conj()) for each in (grad, param, *kept))
    grad, param, *kept_pairs = pairs
    return tuple(torch.view_as_complex(each) for each in leaf(grad, param, state, *kept_pairs))
