"""What a shell is made of, as plain values that can be stored and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functrain._fold import Pipeline
from functrain._hook import Hook
from functrain._strict import Watched
from functrain._wrapper import CONTRACT
from functrain.shell.optimizers import Optimizers

COUNTERS = ("num_updates",)
"""Configuration that only says where a count starts; the slot knows better."""


def configuration(hook: Hook) -> dict[str, Any]:
    """Return the configuration of a hook as plain values; functions by their names.

    >>> from functrain import ClipNorm
    >>> configuration(ClipNorm(max_norm=1.0))
    {'max_norm': 1.0, 'norm_type': 2.0}
    """
    while isinstance(hook, Watched):  # strict mode watches; it configures nothing
        hook = hook.inner
    names = [name for name in type(hook).model_fields if name not in CONTRACT]
    return {name: _plain_setting(getattr(hook, name)) for name in names}


def _plain_setting(value: Any) -> Any:
    """Return one setting as something that can be stored and compared."""
    if isinstance(value, Hook):
        return configuration(value)
    if hasattr(value, "model_dump"):
        return {"rule": type(value).__name__, **value.model_dump()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", str(value))


def check_configurations(pipeline: Pipeline, stored: Mapping[str, Any]) -> None:
    """Refuse hooks that are missing, left over, or configured otherwise than when they were saved.

    Settings that were not stored are ignored.

    Raises:
        ValueError: the hook, the field, both values and the remedy.
    """
    names = {each.name for each in pipeline}
    if names != set(stored):
        msg = f"the checkpoint was written by hooks {sorted(stored)}; this pipeline has {sorted(names)}"
        raise ValueError(msg)
    for each in pipeline:
        _check_settings(each.name, configuration(each), stored[each.name])


def _check_settings(name: str, current: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Compare the settings of one hook."""
    if unknown := sorted(stored.keys() - current.keys()):
        msg = (
            f"checkpoint conflict in {name!r}: the checkpoint has settings {unknown}, which this hook does not; it has "
            f"{sorted(current)}; build the pipeline as it was when the checkpoint was written"
        )
        raise ValueError(msg)
    for field, old, new in differing(current, stored):
        raise ValueError(f"{told_conflict(name, field, old, new)}, or change the slot after loading")


def differing(current: Mapping[str, Any], stored: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return fields that were stored with another value: field, stored value, current one.

    >>> differing({"decay": 0.9, "num_updates": 0}, {"decay": 0.5, "num_updates": 3})
    [('decay', 0.5, 0.9)]
    """
    pairs = ((field, stored.get(field, new), new) for field, new in current.items())
    return [(field, old, new) for field, old, new in pairs if field not in COUNTERS and old != new]


def told_conflict(name: str, field: str, old: Any, new: Any) -> str:
    """Say which field of which hook has two values, and what to do."""
    return (
        f"checkpoint conflict in {name!r}: {field}={old!r} in the checkpoint and {field}={new!r} in the "
        "pipeline; construct the hook with the stored value"
    )


def kinds(optimizers: Optimizers) -> dict[str, dict[str, str]]:
    """Return the class names of optimizers and schedulers by key; "None" where there is no scheduler."""
    schedulers = {key: "None" if each is None else type(each).__name__ for key, each in optimizers.schedulers.items()}
    return {"optimizer": {key: type(each).__name__ for key, each in optimizers.by_key.items()}, "scheduler": schedulers}


def check_kinds(optimizers: Optimizers, stored: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse optimizers and schedulers of other kinds: torch would take their state and fail at a later step.

    Raises:
        ValueError: key, both kinds and the remedy.
    """
    for what, current in kinds(optimizers).items():
        for key in sorted({*current, *stored[what]}):
            old, new = stored[what].get(key, "None"), current.get(key, "None")
            if old != new:
                msg = (
                    f"checkpoint conflict: {what} {key!r} is {old} in the checkpoint and {new} in this shell; "
                    "build the shell as it was when the checkpoint was written"
                )
                raise ValueError(msg)
