"""The metrics of a run, read: the only place where ranks exchange them."""

from __future__ import annotations

from typing import cast

import torch

from functrain.shell.driver import Driver


def read_metrics(driver: Driver) -> dict[str, float]:
    """Return loss and metrics of this batch as numbers, means over ranks; one collective and one transfer."""
    state = driver.state
    found = {"loss": state.raw_loss, **state.metrics}
    values = torch.stack([each.detach().to(state.raw_loss.device, torch.float64) for each in found.values()])
    if driver.distributed is not None:
        values = driver.distributed.ranks.summed(values) / state.world
    return dict(zip(found, cast("list[float]", values.tolist()), strict=True))
