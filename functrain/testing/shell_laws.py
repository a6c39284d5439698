"""The laws of a whole run in a shell, and one call that checks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from functrain import Hook, Shell, Stage, TrainState
from functrain.testing.breach import Breach, require_same
from functrain.testing.check import Then
from functrain.testing.events import EVENTS, Event, schedules
from functrain.testing.law import Law
from functrain.testing.laws.runs import judged
from functrain.testing.oracles import check_interpreters
from functrain.testing.report import LawReport
from functrain.testing.resuming import check_restored
from functrain.testing.scene import Scene
from functrain.testing.search import Search, report_of, seed_of
from functrain.testing.shell_run import ShellRun
from functrain.testing.training import Training

SHELL_EVENTS: tuple[Event, ...] = tuple(event for event in EVENTS if event not in ("restore", "swap"))


def check_shell(
    training: Training,
    *,
    max_examples: int = 10,
    seed: int | None = None,
    database: Any = None,
    if_broken: Then = "raise",
) -> LawReport:
    """Check a training run as a whole: what a shell does with these hooks, this model and this optimizer.

    Args:
        training: what is run; its model must not draw (dropout).
        max_examples: schedules of events that are drawn.
        seed: of the drawing; the report names the one that was used.
        database: an ``ExampleDatabase`` of Hypothesis, which like Hypothesis's own is not used with a ``seed``; by
            default nothing is kept.
        if_broken: "raise" at the end, or "return" the report all the same.

    Returns:
        the report, a row a law.

    Raises:
        LawViolation: some law is broken; ``violation.scene.schedule`` is what happened.

    >>> from functrain import SkipNonFinite
    >>> training = Training(
    ...     model=lambda: torch.nn.Linear(2, 1),
    ...     loss_fn=lambda model, x: model(x).square().mean(),
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     batches=[torch.ones(3, 2)],
    ...     hooks=SkipNonFinite(),
    ... )
    >>> check_shell(training, max_examples=2).broken
    ()
    """
    pipeline = training.pipeline
    search = Search(repr(training), runs(pipeline), max_examples, seed_of(seed, database), database)
    report = report_of(repr(training), pipeline, shell_laws(training), search)
    if if_broken == "raise":
        report.raise_if_broken()
    return report


def runs(hook: Hook) -> st.SearchStrategy[Scene]:
    """Draw what happens to a run; the state is that of its start."""

    def scene(schedule: list[Event]) -> Scene:
        return Scene(hook, TrainState(), Stage.BEFORE_BATCH, will_skip=False, schedule=tuple(schedule))

    return schedules(events=SHELL_EVENTS, max_size=8).map(scene)


def shell_laws(training: Training) -> tuple[Law, ...]:
    """Return the laws that hold of every run in a shell."""
    return (
        _law("L9 round trip", "a run that is saved and restored goes on as if it had not been", training, _restored),
        _law("L12 exactly once", "a micro-batch is differentiated once, or, dropped, not at all", training, _once),
        _law("L13 agreement", "shell and pure engine do the same", training, _agreeing),
        _law("L14 donation", "a strict shell, which donates nothing, does the same", training, _strict),
    )


def _law(name: str, statement: str, training: Training, check: Callable[[Training, Scene], None]) -> Law:
    return Law(name, statement, partial(check, training))


def _restored(training: Training, scene: Scene) -> None:
    judged(partial(check_restored, training, ["save", *scene.schedule, "fine"], ways=("snapshot", "state_dict")))


def _agreeing(training: Training, scene: Scene) -> None:
    judged(partial(check_interpreters, training, [*scene.schedule, "fine"]))


def _once(training: Training, scene: Scene) -> None:
    """Count how often each loss is differentiated."""
    backwards: list[Tensor] = []

    def counted(models: Any, batch: Any) -> Tensor:
        loss = training.loss_fn(models, batch)
        loss.register_hook(backwards.append)
        return loss

    run = ShellRun(replace(training, loss_fn=counted))
    for place, event in enumerate(scene.schedule):
        backwards.clear()
        run.happen(event, place)
        expected = 0 if event in ("flush", "save") or _dropped(run.shell) else 1
        if len(backwards) != expected:
            raise Breach(f"differentiated so many times, in {event!r} at place {place}", "", expected, len(backwards))


def _dropped(shell: Shell) -> bool:
    """Tell whether the last micro-batch never reached its backward."""
    drops: Any = shell.state.vetoes.get(Stage.DO_BACKWARD, {})
    return any(bool(veto) for veto in drops.values()) or bool(shell.state.raw_loss.isnan() & shell.state.loss.isnan())


def _strict(training: Training, scene: Scene) -> None:
    """Run the same in a strict shell, and compare the states in the end."""
    torch.manual_seed(training.seed)
    models = training.model()
    strict = Shell(models, training.optimizer_of(models), training.pipeline, strict=True)
    runs_of = [ShellRun(training), ShellRun(training, strict)]
    for place, event in enumerate((*scene.schedule, "fine")):
        for run in runs_of:
            run.happen(event, place)
    donating, watched = (run.shell.state.replace(donated=False) for run in runs_of)
    require_same(donating, watched, "a strict shell is in another state")
