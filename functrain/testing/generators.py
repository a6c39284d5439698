"""The global random generators: what a pure function draws nothing from."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from functrain.testing.forms import bits


def generators() -> dict[str, Any]:
    """Return the state of each global generator by the name of its module, to be compared.

    >>> before = generators()
    >>> generators() == before
    True
    """
    found: dict[str, Any] = {"torch": bits(torch.get_rng_state()), "random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state: Any = numpy.random.get_state()
        found["numpy.random"] = (state[1].tobytes(), *state[2:])
    return found


@contextmanager
def restored() -> Generator[None]:
    """Put the global generators back as they were, whatever happens inside."""
    numpy: Any = sys.modules.get("numpy")
    torch_state, state = torch.get_rng_state(), random.getstate()
    numbers = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numbers)
