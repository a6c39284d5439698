"""From what was seen of each lane to its record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from functrain._state import TrainState
from functrain.pure.lanes import Seen
from functrain.pure.table import Record, SweepTable


def tabulated(lanes: Sequence[Mapping[str, Any]], states: TrainState, seen: Seen) -> SweepTable:
    """Return the table of lanes that have run."""
    clock = states.clock
    counts: dict[str, Any] = {"steps": clock.step, "skips": clock.skipped, "batches": clock.batch, "dead": seen.dead}
    columns: dict[str, list[Any]] = _losses(seen) | {name: held.tolist() for name, held in counts.items()}
    rows: list[Record] = [
        {"lane": place, **lane, **{name: held[place] for name, held in columns.items()}}
        for place, lane in enumerate(lanes)
    ]
    return SweepTable(tuple(rows), states, _until_death(seen.loss, columns["batches"]))


def _losses(seen: Seen) -> dict[str, list[Any]]:
    """Return the last loss and the mean loss of each lane, over the micro-batches that count; NaN where none does."""
    kept = torch.where(seen.counts, seen.loss, 0.0)
    mean = kept.sum(dim=1) / seen.counts.sum(dim=1)
    order = torch.arange(1, 1 + seen.counts.shape[1])
    last = (seen.counts * order).max(dim=1).values - 1
    loss = torch.where(last >= 0, seen.loss.gather(1, last.clamp(min=0).unsqueeze(1)).squeeze(1), math.nan)
    return {"loss": loss.tolist(), "mean_loss": mean.tolist()}


def _until_death(losses: Tensor, batches: list[int]) -> Tensor:
    """Return losses with NaN where a lane no longer lived."""
    lived = torch.arange(losses.shape[1]) < torch.tensor(batches).unsqueeze(1)
    return torch.where(lived, losses, math.nan)
