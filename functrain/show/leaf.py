"""One leaf of a state in a few words; a device is asked for a value only with ``stats``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def leaf_note(leaf: Any, *, stats: bool = False) -> str:
    """Return shape, dtype and device of a tensor; of a Python number its value; of anything else its type.

    Args:
        leaf: what stands at the end of a path.
        stats: also the value of a 0-d tensor, or the norm of a larger one, which waits for its device.

    >>> leaf_note(torch.ones(2, 2)), leaf_note(torch.ones(2, 2), stats=True), leaf_note(3)
    ('(2, 2) float32 cpu', '(2, 2) float32 cpu norm=2', '3')
    """
    if isinstance(leaf, Tensor):
        kind = f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')} {leaf.device}"
        return f"{kind} {_measured(leaf)}" if stats else kind
    return repr(leaf) if leaf is None or isinstance(leaf, bool | int | float | str) else type(leaf).__name__


@torch.no_grad()
def _measured(leaf: Tensor) -> str:
    """Return the value or the norm; why not, where there is none to read."""
    try:
        if not leaf.ndim:
            return f"value={leaf.item():.4g}"
        return f"norm={torch.linalg.vector_norm(leaf.abs().double()).item():.4g}"
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return f"unread ({type(error).__name__})"
