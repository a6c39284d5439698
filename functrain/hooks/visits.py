"""Shadows that cannot be moved in groups: those that live on another device, and those that must look at weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from functrain._foreach import local
from functrain._select import Number, beside


class Visits:
    """Tensors to be moved one by one, each beside the one it follows: it visits that one's device, and returns.

    Everything is queued on the device of the weights, so nothing waits: whoever reads a shadow on the CPU that follows
    weights on a GPU has to synchronize first. Of what is sent only one tensor at a time is there.

    >>> import torch
    >>> Visits([x := torch.zeros(1)], [torch.ones(1)], lambda weight, shadow: weight).lerp_(0.25); x
    tensor([0.2500])
    """

    def __init__(
        self, targets: Sequence[Tensor], sources: Sequence[Tensor], seen: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """Keep the pairs, and what is seen of a source given the source and the target."""
        self._pairs = list(zip(map(local, targets), map(local, sources), strict=True))
        self._seen = seen

    def copy_(self) -> None:
        """Make every target equal to what is seen of its source."""
        for target, source in self._pairs:
            visitor = target.to(source.device, non_blocking=True)
            target.copy_(self._seen(source.to(target.dtype), visitor), non_blocking=True)

    def lerp_(self, weight: Number) -> None:
        """Move every target by the double ``weight``: bitwise what a group would do."""
        for target, source in self._pairs:
            visitor = target.to(source.device, non_blocking=True)
            visitor.lerp_(self._seen(source.to(target.dtype), visitor), beside(weight, visitor))
            if visitor is not target:
                target.copy_(visitor, non_blocking=True)
