"""Names of parametrized cases that are the same in every process."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def stable(value: Any) -> str | None:
    """Return a value as text; nothing for a tensor, which pytest then names after its place.

    How a tensor prints depends on what a process has done before, and mutation testing finds tests by name in another.
    """
    return None if isinstance(value, Tensor) else str(value)
