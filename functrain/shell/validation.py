"""What a validation found, for hooks and for schedulers that wait for a metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from functrain._stage import Stage
from functrain._tree import FrozenMap
from functrain.shell.driver import Driver

Metric: TypeAlias = str | Callable[[Mapping[str, Any]], Any]


def consume(driver: Driver, summary: Mapping[str, Any], metric: Metric) -> None:
    """Show a summary to the hooks, then step metric-driven schedulers, once."""
    waiting = driver.applier.optimizers.metric_schedulers()
    if waiting and isinstance(metric, str) and metric not in summary:
        msg = f"no metric {metric!r} in the validation summary; it has {sorted(summary)}; give validated(metric=...)"
        raise KeyError(msg)
    driver.state = driver.state.replace(validation=FrozenMap(summary))
    driver.fire(Stage.AFTER_VALIDATION)
    for scheduler in waiting:
        scheduler.step(float(summary[metric] if isinstance(metric, str) else metric(summary)))
