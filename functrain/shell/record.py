"""What one micro-batch did, as a dict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from functrain._clock import any_of
from functrain._select import Flag, both
from functrain._stage import Stage
from functrain._state import EMPTY, TrainState
from functrain.shell.fetching import fetch, kept

SKIPPED_BY = "skipped_by"
SKIPPING = ((Stage.DO_BACKWARD, "@DO_BACKWARD"), (Stage.DO_OPTIMIZER_STEP, "@DO_OPTIMIZER_STEP"))
"""The stages at which a veto skips something, and how they are told."""


def record_of(state: TrainState) -> dict[str, Any]:
    """Return the numbers of a micro-batch, and who skipped what; tensors stay tensors, and no device is read."""
    clock = state.clock
    numbers = {"loss": state.raw_loss, "final_loss": state.loss, "lr": _learning_rate(state), **state.metrics}
    if state.scaler:
        numbers["scale"] = state.scaler["scale"]
    counts = {"epoch": clock.epoch, "batch": clock.batch, "step": clock.step, "skipped": clock.skipped}
    found = {**numbers, **counts, "stepped": any_of(state.stepped)}
    return {**{name: kept(value) for name, value in found.items()}, SKIPPED_BY: reasons(state)}


def reasons(state: TrainState) -> Any:
    """Return who skipped what in this batch, as "hook@STAGE"; waiting in a window and keeping gradients are no skips.

    What tensors decide is told by them until the record is read.

    >>> reasons(TrainState())
    ()
    """
    found: dict[str, Flag] = {}
    for stage, told in SKIPPING:
        due = state.window.boundary if stage is Stage.DO_OPTIMIZER_STEP else True
        for name, flag in state.vetoes.get(stage, EMPTY).items() if due is not False else ():
            found[name + told] = both(flag, due)
    if any(not isinstance(flag, bool) for flag in found.values()):
        return {name: kept(flag) for name, flag in found.items() if flag is not False}
    return _those_set(found)


def _those_set(flags: dict[str, Flag]) -> tuple[str, ...]:
    return tuple(name for name, flag in flags.items() if flag)


def read_records(records: Iterable[dict[str, Any]]) -> None:
    """Read all tensors of records, in place; those that have been read already cost nothing."""
    records = list(records)
    fetch(records)
    for each in records:
        if isinstance(flags := each.get(SKIPPED_BY), dict):
            each[SKIPPED_BY] = _those_set(cast("dict[str, Flag]", flags))


def _learning_rate(state: TrainState) -> Any:
    """Return the learning rate of the first group."""
    rates: list[Any] = [numbers.get("lr") for groups in state.hyper.values() for numbers in groups.values()]
    return rates[0] if rates else None
