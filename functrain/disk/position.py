"""Where a run is in its data, as far as loaders and generators can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

SEEDS = ("generator", "sampler", "sampler.generator", "batch_sampler", "batch_sampler.generator")
"""Where a loader may hold a generator or a sampler that can be saved."""


def position_of(data: Any) -> Any:
    """Return the state of a loader or sampler, or a mapping of numbers and texts as it is; else nothing.

    >>> position_of([1, 2]), position_of({"shard": 3})
    (None, {'shard': 3})
    """
    if isinstance(data, Mapping):
        return dict(cast("Mapping[str, Any]", data))
    return data.state_dict() if callable(getattr(data, "state_dict", None)) else None


def set_position(data: Any, stored: Any) -> None:
    """Give a loader or sampler its state back, if one was stored and it can take it."""
    if stored is not None and callable(getattr(data, "load_state_dict", None)):
        data.load_state_dict(stored)


def seeds_of(loader: Any) -> dict[str, Any]:
    """Return what decides the order of an epoch: generators and samplers that a loader holds, by attribute.

    >>> sorted(seeds_of(torch.utils.data.DataLoader([1], generator=torch.Generator())))
    ['generator']
    """
    found: dict[str, Any] = {}
    for path in SEEDS:
        held = loader
        for name in path.split("."):
            held = getattr(held, name, None)
        known = any(held is each for each in found.values())
        if not known and (isinstance(held, torch.Generator) or callable(getattr(held, "state_dict", None))):
            found[path] = held
    return found


def seed_states(loader: Any) -> dict[str, Any]:
    """Return the states of what decides the order of an epoch."""
    return {
        path: held.get_state() if isinstance(held, torch.Generator) else held.state_dict()
        for path, held in seeds_of(loader).items()
    }


def set_seeds(loader: Any, stored: Mapping[str, Any]) -> None:
    """Give them their states back, so that an epoch is dealt in the same order again."""
    for path, held in seeds_of(loader).items():
        if path in stored and isinstance(held, torch.Generator):
            held.set_state(stored[path])
        elif path in stored:
            held.load_state_dict(stored[path])
