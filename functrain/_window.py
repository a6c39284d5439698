"""The accumulation window: the micro-batches that lead to one optimizer step."""

from __future__ import annotations

from torch import Tensor

from functrain import _tree
from functrain._select import Flag, Number, both


@_tree.record()
class Window(_tree.Record):
    """The numbers of the open window; all of them leaves, so that a checkpoint in mid-window resumes exactly.

    Attributes:
        boundary: this micro-batch completes the window.
        last: no micro-batch follows in this epoch, as far as the caller knows.
        entered: micro-batches whose backward has run since the window opened.
        divisor: what the interpreter divides each loss by in a window that counts its micro-batches.
        weighted: this window multiplies losses by weights instead.
        weight: what the loss of this micro-batch is multiplied by; 1 in a window that counts.
        total: sum of the weights that entered, so the count again in a window that counts.

    >>> Window().replace(entered=2).emptied().entered
    0
    """

    boundary: Flag = True
    last: Flag = False
    entered: Number = 0
    divisor: Number = 1
    weighted: Flag = False
    weight: Number = 1.0
    total: Number = 0.0

    def opened(self, last: Flag) -> Window:
        """Return the window as a micro-batch finds it before any hook has spoken: it is its own boundary."""
        weighted = both(self.weighted, self.entered > 0)  # pyright: ignore[reportArgumentType] - a flag of either kind
        return self.changed(boundary=True, last=last, divisor=1, weighted=weighted, weight=1.0)

    def weighed(self, weight: Number) -> Window:
        """Return the window with the weight of this micro-batch; real, so that a count of tokens is no other kind.

        >>> Window().weighed(7).weight
        7.0
        """
        return self.replace(weighted=True, weight=weight.double() if isinstance(weight, Tensor) else float(weight))

    def with_entry(self) -> Window:
        """Return the window after the backward of a micro-batch."""
        return self.replace(entered=self.entered + 1, total=self.total + self.weight)

    def cleared(self) -> Window:
        """Return the window after its gradients were cleared: what had entered is gone, what was decided stays."""
        if isinstance(self.entered, int) and not self.entered:
            return self
        return self.replace(entered=self.entered * 0, total=self.total * 0)

    def emptied(self) -> Window:
        """Return the window with nothing in it."""
        return self.replace(entered=0, total=0.0, weighted=False)
