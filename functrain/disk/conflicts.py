"""What a checkpoint and a pipeline have in common, hook by hook: what is missing, left over, or in conflict."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

from functrain._fold import Pipeline
from functrain.shell.configuration import configuration, differing, told_conflict

OnConflict: TypeAlias = Literal["raise", "stored", "current"]
"""What holds where a hook was configured otherwise: nothing, the checkpoint, or the pipeline."""


@dataclass(frozen=True)
class Report:
    """How a checkpoint and a pipeline fitted.

    Attributes:
        missing: hooks that the checkpoint knows nothing of; they start afresh.
        left_over: hooks of which only the checkpoint knows; what they kept was left out.
        settled: conflicts that ``on_conflict`` has settled, in words.

    >>> print(Report(missing=("ema",)))
    hooks that the checkpoint knows nothing of, which start afresh: ema
    """

    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it; nothing if everything fitted."""
        lines = [f"hooks that the checkpoint knows nothing of, which start afresh: {', '.join(self.missing)}"]
        lines += [f"hooks of which only the checkpoint knows, left out: {', '.join(self.left_over)}"]
        said = [line for line, names in zip(lines, (self.missing, self.left_over), strict=True) if names]
        return "\n".join([*said, *self.settled])

    def warn(self) -> None:
        """Warn of hooks that came or went."""
        if self.missing or self.left_over:
            warnings.warn(str(self), UserWarning, stacklevel=4)


class Slots(NamedTuple):
    """Slots by name, and how they came about."""

    slots: dict[str, Any]
    report: Report


def checked_choice(on_conflict: Any) -> None:
    """Refuse a choice that is none.

    Raises:
        ValueError: lists those there are.
    """
    if on_conflict not in get_args(OnConflict):
        raise ValueError(f"on_conflict must be one of {list(get_args(OnConflict))}, got {on_conflict!r}")


def adapted(
    pipeline: Pipeline | None,
    configurations: Mapping[str, Any] | None,
    current: Mapping[str, Any],
    stored: Mapping[str, Any],
    on_conflict: OnConflict,
) -> Slots:
    """Return for each current slot the stored one, or, where nothing was stored, itself.

    Args:
        pipeline: of the run; without it nothing is compared but names.
        configurations: of the hooks that the checkpoint was written with, if it knows them.
        current: slots of the run.
        stored: slots of the checkpoint.
        on_conflict: what holds where a hook was configured otherwise.

    Raises:
        ValueError: a conflict that nobody settles: hook, field, both values and the remedy.
    """
    checked_choice(on_conflict)
    slots, settled = dict(current), list[str]()
    for name in current:
        if name in stored:
            found = _conflicts(name, pipeline, configurations)
            slots[name] = _settled(name, found, current[name], stored[name], on_conflict)
            settled += [told_conflict(name, *each) + f"; on_conflict={on_conflict!r}" for each in found]
    missing = tuple(name for name in current if name not in stored)
    left_over = tuple(name for name in stored if name not in current)
    return Slots(slots, Report(missing, left_over, tuple(settled)))


def _conflicts(name: str, pipeline: Pipeline | None, stored: Mapping[str, Any] | None) -> list[tuple[str, Any, Any]]:
    """Return the fields in which a hook differs from what was stored of it."""
    if pipeline is None or stored is None or name not in stored:
        return []
    return list(_differences(configuration(pipeline[name]), stored[name], ""))


def _differences(current: Any, stored: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield fields that differ; of hooks in hooks the inner ones, so that they are named."""
    for field, old, new in differing(current, stored):
        if _alike(old, new):
            yield from _differences(new, old, f"{prefix}{field}.")
        else:
            yield prefix + field, old, new
    for field in sorted(stored.keys() - current.keys()):
        yield prefix + field, stored[field], "nothing"


def _alike(one: Any, other: Any) -> bool:
    """Tell two configurations of the same fields, and of the same rule if they are rules."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    mine, theirs = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
    return mine.keys() == theirs.keys() and mine.get("rule") == theirs.get("rule")


def _settled(name: str, found: list[tuple[str, Any, Any]], current: Any, stored: Any, on_conflict: OnConflict) -> Any:
    """Return the slot that holds; fields that are lifted into it are those of the one who holds."""
    slot = dict(cast("Mapping[str, Any]", stored)) if isinstance(stored, Mapping) else dict[str, Any]()
    for field, old, new in found:
        lifted = field.rpartition(".")[2]
        in_slot = lifted in slot and isinstance(current, Mapping)
        if on_conflict == "raise":
            raise ValueError(f'{told_conflict(name, field, old, new)}, or write on_conflict="stored" or "current"')
        if on_conflict == "stored" and not in_slot:
            why = f"{lifted!r} is no number of the slot, so the checkpoint cannot set it"
            raise ValueError(f"{told_conflict(name, field, old, new)}; {why}")
        if on_conflict == "current" and in_slot:
            slot[lifted] = current[lifted]
    return slot if isinstance(stored, Mapping) else stored
