"""Whether gradients are recorded: a mode that is entered only where it is not there already."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._C import _set_grad_enabled as _switch  # pyright: ignore[reportPrivateUsage] - what torch's own contexts call


class Switch:
    """A context that switches the mode over, and back: it has no state, so one for each direction is enough.

    ``torch.set_grad_enabled`` sets the mode three times for the same.
    """

    def __init__(self, enabled: bool) -> None:
        """Keep what holds inside."""
        self._enabled = enabled

    def __enter__(self) -> None:
        """Switch over."""
        _switch(self._enabled)

    def __exit__(self, *_: object) -> None:
        """Switch back."""
        _switch(not self._enabled)


UNCHANGED: AbstractContextManager[Any] = nullcontext()
"""A context that changes nothing."""
ON, OFF = Switch(enabled=True), Switch(enabled=False)


def grad_mode(*, enabled: bool) -> AbstractContextManager[Any]:
    """Return a context, to be entered at once, in which gradients are recorded, or are not.

    >>> with grad_mode(enabled=False):
    ...     torch.is_grad_enabled()
    False
    >>> grad_mode(enabled=True) is UNCHANGED
    True
    """
    return UNCHANGED if torch.is_grad_enabled() is enabled else ON if enabled else OFF
