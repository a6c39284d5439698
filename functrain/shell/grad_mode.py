"""Whether gradients are recorded: a mode that is entered only where it is not there already."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

UNCHANGED: AbstractContextManager[Any] = nullcontext()
"""A context that changes nothing; it has no state, so one is enough."""


def grad_mode(*, enabled: bool) -> AbstractContextManager[Any]:
    """Return a context in which gradients are recorded, or are not.

    >>> with grad_mode(enabled=False):
    ...     torch.is_grad_enabled()
    False
    >>> grad_mode(enabled=True) is UNCHANGED
    True
    """
    return UNCHANGED if torch.is_grad_enabled() is enabled else torch.set_grad_enabled(enabled)
