"""Whether all ranks have built the same shell: what differs would make them wait for one another for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from functrain._fold import Pipeline
from functrain._state import TrainState
from functrain.shell.collectives import Ranks
from functrain.shell.configuration import configuration, kinds
from functrain.shell.optimizers import Optimizers


def check_alike(ranks: Ranks, pipeline: Pipeline, state: TrainState, optimizers: Optimizers) -> None:
    """Refuse ranks that were built differently, on all of them at once.

    Raises:
        ValueError: the first thing that differs, and both values.
    """
    built = _built(pipeline, state, optimizers)
    refuse_different(ranks, built, "build the same models, optimizers and hooks on every rank")


def refuse_different(ranks: Ranks, own: Mapping[str, Any], remedy: str) -> None:
    """Refuse ranks of which each gives something else, on all of them at once.

    Raises:
        ValueError: the first thing that differs, and both values.
    """
    found = ranks.objects(own)
    for rank, other in enumerate(found):
        if (said := difference(found[0], other)) is not None:
            msg = f"rank {rank} differs from rank 0 in {said}; {remedy}"
            raise ValueError(msg)


def settings_of(pipeline: Pipeline) -> dict[str, Any]:
    """Return how hooks are configured, as plain values."""
    return {each.name: {**configuration(each), "priority": each.priority} for each in pipeline}


def _built(pipeline: Pipeline, state: TrainState, optimizers: Optimizers) -> dict[str, Any]:
    """Return what a shell is made of, as plain values that travel and compare."""
    return {
        "hooks": [each.name for each in pipeline],
        "settings": settings_of(pipeline),
        "kinds": kinds(optimizers),
        "parameters": {key: {name: _shape(leaf) for name, leaf in held.items()} for key, held in state.params.items()},
        "held": {key: len(held) for key, held in optimizers.owners.table.items()},
        "hyper": {key: _numbers(groups) for key, groups in state.hyper.items()},
    }


def _shape(leaf: Tensor) -> str:
    return f"{tuple(leaf.shape)} {leaf.dtype}"


def _numbers(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the numbers of groups as Python's."""
    return {
        place: {name: value.item() if isinstance(value, Tensor) else value for name, value in held.items()}
        for place, held in groups.items()
    }


def difference(a: Any, b: Any, path: str = "") -> str | None:
    """Return where two plain values first differ, and how; None where they are equal.

    >>> difference({"clip": {"max_norm": 1.0}}, {"clip": {"max_norm": 2.0}})
    "['clip']['max_norm']: 2.0 and not 1.0"
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():  # pyright: ignore[reportUnknownMemberType]
        left, right = cast("Mapping[str, Any]", a), cast("Mapping[str, Any]", b)
        said = (difference(left[key], right[key], f"{path}[{key!r}]") for key in left)
        return next((each for each in said if each is not None), None)
    return None if a == b else f"{path}: {b!r} and not {a!r}"
