"""A straight run, and the same run saved and restored on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, get_args

from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.disk import load, save
from functrain.shell.dictionaries import KEPT, plain
from functrain.testing.differences import require_none, unlike
from functrain.testing.events import Event, affected, checked_events
from functrain.testing.shell_run import ShellRun
from functrain.testing.training import Training

Way: TypeAlias = Literal["snapshot", "state_dict", "disk", "bridges", "pure", "pure_disk"]
WAYS: tuple[Way, ...] = get_args(Way)


def check_restored(training: Training, schedule: Sequence[Event] | None = None, *, ways: Iterable[Way] = WAYS) -> None:
    """Check that a run that is saved and restored goes on bitwise as if it had not been.

    Args:
        training: what is run.
        schedule: what happens; at each "save" the run is saved, spoilt by a spike, and restored. By default before
            every micro-batch.
        ways: ``"snapshot"``, of the same shell; ``"state_dict"``, loaded into a new shell on new models; ``"disk"``,
            the same through a checkpoint; ``"bridges"``, through a checkpoint of the pure engine into a new shell;
            ``"pure"``, where the state is its own snapshot; ``"pure_disk"``, through a checkpoint into a new first
            state. The last three need SGD, Adam or AdamW.

    Raises:
        Disagreement: with every path at which they differ, the way, and after which event.
        ValueError: an unknown event or way.

    >>> import torch
    >>> from functrain import Accumulate
    >>> training = Training(
    ...     model=lambda: torch.nn.Linear(2, 1),
    ...     loss_fn=lambda model, x: model(x).square().mean(),
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    ...     batches=[torch.ones(3, 2)],
    ...     hooks=Accumulate(every=2),
    ... )
    >>> check_restored(training, ["fine", "save", "fine", "flush", "save", "fine"])
    """
    schedule = training.schedule("save", "fine") if schedule is None else checked_events(schedule)
    for way in ways:
        if way not in WAYS:
            msg = f"unknown way {way!r} to save and restore; there are {list(WAYS)}"
            raise ValueError(msg)
        records = _pure_records if way in ("pure", "pure_disk") else _shell_records
        straight, resumed = records(training, schedule, None), records(training, schedule, way)
        for place, (one, other) in enumerate(zip(list(straight), resumed, strict=True)):
            what = f"the straight run and one through {way!r}, after {schedule[place]!r} at place {place},"
            if way == "bridges":
                one, other = _with_wide_losses(one), _with_wide_losses(other)  # noqa: PLW2901 - as they are compared
            require_none(what, unlike(one, other, "shell"))


Records: TypeAlias = Iterator[Any]


def _shell_records(training: Training, schedule: Sequence[Event], way: Way | None) -> Records:
    """Yield what a run in a shell consists of after each event."""
    run = ShellRun(training)
    for place, event in enumerate(schedule):
        if event == "save" and way is not None:
            run = _THERE_AND_BACK[way](run, place)
        run.happen(event, place)
        yield recorded(run)


def recorded(run: ShellRun) -> dict[str, Any]:
    """Return copies of all that a shell resumes from, without the generators of random numbers."""
    taken = run.shell.snapshot()
    state = {name: plain(getattr(taken.state, name)) for name in KEPT}
    return {"state": FrozenMap(state), "optimizers": FrozenMap(taken.optimizers)}


def _with_wide_losses(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with losses as doubles: a shell holds them as computed, a pure state as wide as its weights."""
    wide = {name: record["state"][name].double() for name in ("loss", "raw_loss")}
    return record | {"state": record["state"] | wide}


def _by_snapshot(run: ShellRun, place: int) -> ShellRun:
    taken = run.shell.snapshot()
    _spoil(run, place)
    run.shell.restore(taken)
    return run


def _by_state_dict(run: ShellRun, place: int) -> ShellRun:
    saved = run.shell.state_dict()
    _spoil(run, place)
    fresh = run.fresh()
    fresh.shell.load_state_dict(saved)
    return fresh


def _by_disk(run: ShellRun, place: int) -> ShellRun:
    with TemporaryDirectory() as folder:
        path = save(f"{folder}/checkpoint", run.shell)
        _spoil(run, place)
        fresh = run.fresh()
        fresh.shell.load(path)
    return fresh


def _by_bridges(run: ShellRun, place: int) -> ShellRun:
    with TemporaryDirectory() as folder:
        state = load(save(f"{folder}/checkpoint", run.shell.to_pure())).state
    taken = run.shell.snapshot()
    _spoil(run, place)
    run.shell.restore(taken)  # the generators, which no bridge moves
    return run.moved(state)


def _spoil(run: ShellRun, place: int) -> None:
    """Go on with a run that is given up: nothing of it may reach the one that was saved."""
    run.happen("spike", place)


_THERE_AND_BACK: dict[Way, Callable[[ShellRun, int], ShellRun]] = {
    "snapshot": _by_snapshot,
    "state_dict": _by_state_dict,
    "disk": _by_disk,
    "bridges": _by_bridges,
}


def _pure_records(training: Training, schedule: Sequence[Event], way: Way | None) -> Records:
    """Yield the state of a pure run after each event; at each save the run goes elsewhere first, if it has a way."""
    run, state = training.start()
    for place, event in enumerate(schedule):
        batch = training.batch(place)
        if event == "save" and way is not None:
            run.step(state, affected(batch, "spike"))
            state = _read_back(training, state) if way == "pure_disk" else state
        state = _after(run, state, batch, event)
        yield state


def _read_back(training: Training, state: TrainState) -> TrainState:
    """Return a state after it was on disk, in the structure of a new run."""
    with TemporaryDirectory() as folder:
        path = save(f"{folder}/checkpoint", state, pipeline=training.pipeline)
        _, first = training.start()
        return load(path).into(first, training.pipeline)


def _after(run: Any, state: TrainState, batch: Any, event: Event) -> TrainState:
    if event == "flush":
        return run.flush(state)
    return state if event in ("drop", "save", "restore", "swap") else run.step(state, affected(batch, event))
