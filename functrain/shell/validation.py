"""What a validation found, for hooks and for schedulers that wait for a metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from functrain._stage import Stage
from functrain._tree import FrozenMap
from functrain.shell.driver import Driver

Metric: TypeAlias = str | Callable[[Mapping[str, Any]], Any]


def over_ranks(driver: Driver, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary with the means over ranks of its numbers, the same on all of them; alone, what was given.

    Raises:
        ValueError: ranks that give different keys.
    """
    if driver.distributed is None:
        return dict(summary)
    numbers = {key: number for key, value in summary.items() if (number := _number(value)) is not None}
    found = driver.distributed.ranks.objects(numbers)
    for rank, other in enumerate(found):
        if other.keys() != found[0].keys():
            msg = (
                f"rank {rank} gives the numbers {sorted(other)} of a validation, and rank 0 gives {sorted(found[0])}; "
                "validate alike on every rank, each on its part"
            )
            raise ValueError(msg)
    return {**summary, **{key: _mean([each[key] for each in found]) for key in numbers}}


def _number(value: Any) -> int | float | None:
    """Return a number as Python's; None for what is none."""
    if isinstance(value, bool) or getattr(value, "shape", ()) != ():
        return None
    if isinstance(value, int):
        return value
    return float(value) if hasattr(value, "__float__") else None


def _mean(values: Sequence[float]) -> float:
    """Return the mean, which of equal numbers is bitwise the number.

    >>> _mean([0.1, 0.1, 0.1]), _mean([1, 2])
    (0.1, 1.5)
    """
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)


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
