"""A shell, to a checkpoint and back."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from functrain._errors import CheckpointError
from functrain._merging import exact, of_keys
from functrain.disk.archive import Archive
from functrain.disk.batch_fields import data_in, of_latest
from functrain.disk.conflicts import OnConflict, Report, adapted
from functrain.disk.generators import generator_states, set_generators
from functrain.disk.optimizer_state import check_optimizer, check_scheduler
from functrain.disk.packed import Packed, packed
from functrain.disk.position import position_of, set_position
from functrain.shell.averaging import Averages
from functrain.shell.configuration import check_kinds
from functrain.shell.dictionaries import PARTS, dictionary, merged_state, plain
from functrain.shell.driver import Driver
from functrain.shell.snapshot import Snapshot, adopt, collected


def packed_shell(driver: Driver, averages: Averages, data: Any) -> Packed:
    """Return a shell as it is written, on the tensors of the run.

    Raises:
        ValueError: something that is no data, with its place.
    """
    taken = collected(driver, averages)
    parts = dictionary(driver, replace(taken, random=generator_states()))
    latest = {name: getattr(taken.state, name) for name in ("vetoes", "metrics")}
    latest["validation"] = data_in(taken.state.validation)
    return packed("shell", taken.state.clock, {**parts, "latest": latest, "data": position_of(data)})


def load_shell(driver: Driver, archive: Archive, data: Any, on_conflict: OnConflict) -> Report:
    """Check everything on tensors without memory, read, and take over.

    Raises:
        CheckpointError: a checkpoint that is damaged or does not fit; nothing has changed.
        ValueError: a conflict that nobody settles; the same.
    """
    require_kind(archive, "shell", "pure.to_shell(functrain.load(path).state, ...)")
    current = collected(driver, Averages(driver))
    _fitted(driver, current, archive.outline(), archive.path, on_conflict)
    parts = archive.read()
    taken, report = _fitted(driver, current, parts, archive.path, on_conflict)
    with ExitStack() as undoing, fitting(archive.path):
        undoing.callback(adopt, driver, current)
        undoing.callback(set_generators, generator_states())
        if data is not None:
            undoing.callback(set_position, data, position_of(data))
            set_position(data, parts["data"])
        set_generators(parts["random"])
        adopt(driver, taken)
        driver.read_hyper()
        undoing.pop_all()
    return report


def require_kind(archive: Archive, kind: str, instead: str) -> None:
    """Refuse a checkpoint of the other interpreter.

    Raises:
        CheckpointError: with what to write instead.
    """
    if archive.kind != kind:
        raise CheckpointError(f"{archive.path} holds a state of kind {archive.kind!r}; write {instead}")


def _fitted(
    driver: Driver, current: Snapshot, parts: Mapping[str, Any], path: Path, on_conflict: OnConflict
) -> tuple[Snapshot, Report]:
    """Return the checkpoint in the structure of a shell."""
    with fitting(path):
        _check_parts(parts)
        state = dict(parts["state"])
    slots, report = _slots(driver, parts, on_conflict)
    check_kinds(driver.applier.optimizers, parts["kinds"])
    with fitting(path):
        if bool(current.state.scaler) != bool(state["scaler"]) and (report.missing or report.left_over):
            state["scaler"] = plain(current.state.scaler)  # MixedPrecision came or went, and its scale with it
        merged = merged_state(current.state, {**state, "hooks": slots}, exact)
        merged = merged.replace(**of_latest(merged, parts["latest"]))
        held = {name: of_keys(parts[name], getattr(current, name), name) for name in ("optimizers", "schedulers")}
        for key, each in driver.applier.optimizers.by_key.items():
            check_optimizer(held["optimizers"][key], each, f'optimizers["{key}"]')
            check_scheduler(held["schedulers"][key], driver.applier.optimizers.schedulers[key], f'schedulers["{key}"]')
    return Snapshot(merged, held["optimizers"], held["schedulers"], parts["random"]), report


def _slots(driver: Driver, parts: Mapping[str, Any], on_conflict: OnConflict) -> tuple[dict[str, Any], Report]:
    """Return the stored slots for the hooks that there are."""
    current = {name: plain(slot) for name, slot in driver.state.hooks.items()}
    found = adapted(driver.pipeline, parts["pipeline"], current, parts["state"]["hooks"], on_conflict)
    return found.slots, found.report


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse what could not even be compared."""
    for name in (*PARTS, "latest", "data"):
        if name not in parts:
            raise ValueError(f"the part {name!r} is missing")
    if parts["version"] != 1:
        raise ValueError(f"the parts of the shell have version {parts['version']!r}")
    check_mapping(parts, "state", "optimizers", "schedulers", "kinds", "random", "pipeline", "latest")
    check_mapping(parts["latest"], "vetoes", "metrics", "validation")
    check_mapping(parts["state"], "hooks", "scaler")
    check_mapping(parts["kinds"], "optimizer", "scheduler")
    check_mapping(parts["pipeline"], *parts["pipeline"])
    check_names(parts["state"], parts["kinds"], parts["pipeline"])


def check_names(*trees: Any) -> None:
    """Refuse mappings in which something is kept under anything but a text.

    Raises:
        ValueError: the first key that is none.
    """
    for tree in trees:
        for name, value in cast("Mapping[Any, Any]", tree).items() if isinstance(tree, Mapping) else ():
            if not isinstance(name, str):
                raise ValueError(f"{name!r} is no name")  # noqa: TRY004 - the content of a checkpoint
            check_names(value)


def check_mapping(holder: Mapping[str, Any], *names: str) -> None:
    """Refuse parts that are no mappings.

    Raises:
        ValueError: the first that is none.
    """
    for name in names:
        if not isinstance(holder.get(name), Mapping):
            raise ValueError(f"{name!r} is no mapping")  # noqa: TRY004 - the content of a checkpoint


@contextmanager
def fitting(path: Path) -> Generator[None]:
    """Let whatever does not fit be a CheckpointError, which names it."""
    try:
        yield
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, OverflowError) as error:
        what = error.args[0] if isinstance(error, KeyError) and error.args else error
        raise CheckpointError(f"{path} does not fit: {what}") from error
