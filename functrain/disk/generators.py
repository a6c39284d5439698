"""The random number generators of the process: torch's, Python's, and NumPy's where somebody has imported it."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from functrain.shell.snapshot import random_states, set_random_states


def generator_states() -> dict[str, Any]:
    """Return the states of all generators, as tensors and numbers."""
    version, words, spare = random.getstate()
    found = {**random_states(), "python": {"version": version, "words": torch.tensor(words), "spare": spare}}
    if (numpy := sys.modules.get("numpy")) is not None:
        state = numpy.random.get_state(legacy=False)
        if state["bit_generator"] == "MT19937":
            words = torch.from_numpy(state["state"]["key"].astype("int64"))
            numbers = {"position": int(state["state"]["pos"]), "has_gauss": int(state["has_gauss"])}
            found["numpy"] = {"words": words, **numbers, "gauss": float(state["gauss"])}
    return found


def set_generators(states: dict[str, Any]) -> None:
    """Set all generators of which there is a state.

    Raises:
        ValueError, TypeError, RuntimeError, KeyError: a state that is none.

    >>> states = generator_states()
    >>> one = random.random(), torch.rand(())
    >>> set_generators(states)
    >>> one == (random.random(), torch.rand(()))
    True
    """
    set_random_states(states)
    if "python" in states:
        python = states["python"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["spare"]))
    if "numpy" in states:
        _set_numpy(states["numpy"])


def _set_numpy(state: dict[str, Any]) -> None:
    """Set NumPy's generator; where there is no NumPy, nobody draws from it."""
    try:
        import numpy as np
    except ImportError:
        return
    inner = {"key": state["words"].numpy().astype("uint32"), "pos": state["position"]}
    whole = {"bit_generator": "MT19937", "state": inner, "has_gauss": state["has_gauss"], "gauss": state["gauss"]}
    np.random.set_state(whole)  # noqa: NPY002 - the global generator is the one that others draw from
