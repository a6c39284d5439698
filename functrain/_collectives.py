"""Values over the ranks that train together, for hooks that decide by them; alone, nothing is exchanged."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

import torch
from torch import Tensor

Gather: TypeAlias = Callable[[Tensor], Tensor]
"""From the values of this rank to those of all, one row a rank: one collective."""

_GATHER: ContextVar[Gather | None] = ContextVar("gather", default=None)


@contextmanager
def gathering(gather: Gather) -> Generator[None]:
    """Let hooks exchange values through ``gather`` inside."""
    token = _GATHER.set(gather)
    try:
        yield
    finally:
        _GATHER.reset(token)


def gathered(values: Tensor) -> Tensor:
    """Return the values of all ranks, one row a rank; every rank must ask, and at the same place.

    A hook asks only where every rank does: never behind a verdict that may differ between them.

    A traced call asks nobody: a compiled step is one process, and no tracer sees through a context.

    >>> gathered(torch.tensor([1.0, 2.0]))
    tensor([[1., 2.]])
    """
    gather = None if torch.compiler.is_compiling() else _GATHER.get()
    return values.unsqueeze(0) if gather is None else gather(values)
