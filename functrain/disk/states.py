"""A state of the pure engine, to a checkpoint and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from functrain._fold import Pipeline
from functrain._merging import exact, merged
from functrain._state import TrainState
from functrain.disk.batch_fields import of_latest
from functrain.disk.conflicts import OnConflict, Report, adapted
from functrain.disk.generators import generator_states
from functrain.disk.packed import Packed, packed
from functrain.disk.position import position_of
from functrain.disk.shells import check_mapping, check_names, fitting
from functrain.shell.configuration import configuration

EXACT = (
    "params",
    "buffers",
    "grads",
    "loss",
    "raw_loss",
    "window",
    "clock",
    "stepped",
    "scaler",
    "hyper",
    "opt",
    "rng",
)
"""Fields whose structure depends on the model and on the optimizer; that of the others depends on the hooks."""


def packed_state(state: TrainState, pipeline: Pipeline | None, data: Any) -> Packed:
    """Return a pure state as it is written.

    Raises:
        ValueError: something that is no data, with its place.
    """
    configurations = None if pipeline is None else {each.name: configuration(each) for each in pipeline}
    parts = {"state": state, "random": generator_states(), "pipeline": configurations, "data": position_of(data)}
    return packed("pure", state.clock, parts)


def fitted_state(
    state: TrainState, stored: Mapping[str, Any], path: Path, pipeline: Pipeline | None, on_conflict: OnConflict
) -> tuple[TrainState, Report]:
    """Return what was stored in the structure of a state, on its devices, with its static fields.

    Raises:
        CheckpointError: it does not fit.
        ValueError: a conflict that nobody settles.
    """
    old: TrainState = stored["state"]
    with fitting(path):
        configurations: dict[str, Any] = dict(stored["pipeline"] or {})
        check_names(old.hooks, configurations)
        check_mapping(configurations, *configurations)
    slots, report = adapted(pipeline, stored["pipeline"], state.hooks, old.hooks, on_conflict)
    with fitting(path):
        kept = [name for name in EXACT if not _lost(name, state, old, report)]
        fields = {name: merged(getattr(state, name), getattr(old, name), f"state.{name}", exact) for name in kept}
        hooks = merged(state.hooks, slots, "state.hooks", exact)
        return state.replace(**fields, hooks=hooks, **of_latest(state, vars(old))), report


def _lost(name: str, state: TrainState, old: TrainState, report: Report) -> bool:
    """Tell whether the scaler came or went with its hook."""
    return name == "scaler" and bool(state.scaler) != bool(old.scaler) and bool(report.missing or report.left_over)
