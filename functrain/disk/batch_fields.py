"""What the latest micro-batch and the latest validation left in a state: hooks and limits may still read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functrain._encoding import Encoder
from functrain._merging import exact, merged
from functrain._state import TrainState
from functrain._tree import FrozenMap, freeze


def data_in(summary: Mapping[str, Any]) -> FrozenMap[Any]:
    """Return what of a validation summary is data: it is the user's own, and may hold anything.

    >>> data_in({"accuracy": 0.5, "picture": object()})
    FrozenMap({'accuracy': 0.5})
    """
    return FrozenMap({name: value for name, value in summary.items() if _is_data(value)})


def _is_data(value: Any) -> bool:
    try:
        Encoder(lambda _tensor, _where: 0).encoded(value, "")
    except ValueError:
        return False
    return True


def of_latest(state: TrainState, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the latest micro-batch, for the hooks that there are; what was not stored stays.

    Raises:
        ValueError: a leaf of another kind.
    """
    vetoes = {stage: _by_name(held, stored["vetoes"].get(stage, {})) for stage, held in state.vetoes.items()}
    metrics = _by_name(state.metrics, stored["metrics"])
    return {"vetoes": FrozenMap(vetoes), "metrics": metrics, "validation": freeze(stored["validation"])}


def _by_name(current: FrozenMap[Any], stored: Mapping[str, Any]) -> FrozenMap[Any]:
    found = {name: stored.get(name, value) for name, value in current.items()}
    return merged(current, found, "state", exact)
