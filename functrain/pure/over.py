"""Which lanes a sweep has: one mapping of values per lane."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

Lane: TypeAlias = dict[str, Any]
"""What is different in one lane: a value by the key of what is swept."""


def grid(over: Mapping[str, Iterable[Any]]) -> list[Lane]:
    """Return a lane for every combination of values; the last key varies fastest.

    Raises:
        TypeError: a value that is no series of values.
        ValueError: an empty one.

    >>> grid({"lr": [0.1, 0.2], "seed": [0, 1]})
    [{'lr': 0.1, 'seed': 0}, {'lr': 0.1, 'seed': 1}, {'lr': 0.2, 'seed': 0}, {'lr': 0.2, 'seed': 1}]

    See also: :func:`zipped`.
    """
    series = _series(over)
    return [dict(zip(series, values, strict=True)) for values in itertools.product(*series.values())]


def zipped(over: Mapping[str, Iterable[Any]]) -> list[Lane]:
    """Return a lane for every position: the first values of all keys, the second ones, and so on.

    Lanes are lists of dicts, so any other choice is a comprehension: random search, or a product of both kinds,
    ``[a | b for a in zipped(...) for b in grid(...)]``.

    Raises:
        TypeError: a value that is no series of values.
        ValueError: an empty one, or series of different lengths.

    >>> zipped({"lr": [0.1, 0.2], "seed": [0, 1]})
    [{'lr': 0.1, 'seed': 0}, {'lr': 0.2, 'seed': 1}]

    See also: :func:`grid`.
    """
    series = _series(over)
    lengths = {key: len(values) for key, values in series.items()}
    if len(set(lengths.values())) > 1:
        msg = f"zipped needs as many values of each key, got {lengths}; grid({{...}}) combines all with all"
        raise ValueError(msg)
    return [dict(zip(series, values, strict=True)) for values in zip(*series.values(), strict=True)]


def lanes_of(over: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]) -> list[Lane]:
    """Return the lanes of what was given: a mapping spans a grid, anything else lists the lanes.

    Raises:
        TypeError: neither.
        ValueError: no lanes, or lanes with different keys.

    >>> lanes_of([{"lr": 0.1}, {"lr": 0.2}])
    [{'lr': 0.1}, {'lr': 0.2}]
    """
    if isinstance(over, Mapping):
        return grid(cast("Mapping[str, Iterable[Any]]", over))
    lanes = [_as_lane(each) for each in over]
    if not lanes:
        msg = 'over lists no lanes; write over={"lr": [1e-3, 1e-2]} or a list of dicts'
        raise ValueError(msg)
    for place, lane in enumerate(lanes):
        if lane.keys() != lanes[0].keys():
            msg = f"lane {place} sets {sorted(lane)} and lane 0 sets {sorted(lanes[0])}; all lanes set the same keys"
            raise ValueError(msg)
    return lanes


def _as_lane(each: Any) -> Lane:
    if not isinstance(each, Mapping):
        msg = f'over lists lanes as dicts like {{"lr": 1e-3}}, got {type(each).__name__}'
        raise TypeError(msg)
    return {key: _plain(value) for key, value in cast("Mapping[str, Any]", each).items()}


def _series(over: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """Return the values of each key as a list."""
    if not over:
        msg = 'over names nothing to sweep; write over={"lr": [1e-3, 1e-2]}'
        raise ValueError(msg)
    return {key: _values(key, values) for key, values in over.items()}


def _values(key: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        msg = f"over[{key!r}] must list values, got {values!r}; write [{values!r}]"
        raise TypeError(msg)
    found = [_plain(each) for each in cast("Iterable[Any]", values)]
    if not found:
        msg = f"over[{key!r}] lists no values"
        raise ValueError(msg)
    return found


def _plain(value: Any) -> Any:
    """Return a number of torch or numpy as Python's."""
    return value.item() if hasattr(value, "item") else value
