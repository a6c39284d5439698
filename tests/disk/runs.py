"""Runs that are saved in one process and go on in another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import functrain
from functrain import TrainState, pure
from functrain.testing.events import affected
from functrain.testing.training import Training
from tests.shell.pipelines import run, shell_of
from tests.shell.records import record
from tests.testing.runs import adamw, normed, sgd, training

OPTIMIZERS = {"sgd": sgd, "adamw": adamw}


def resumed(path: Path, hooks: Any, optimizer: str, kinds: Sequence[str], start: int) -> Any:
    """Load a checkpoint into a new shell on other weights, go on, and return everything there is then."""
    torch.manual_seed(99)
    shell = shell_of(hooks, optimizer, seed=7)
    shell.load(path)
    run(shell, kinds, start)
    return record(shell)


def straight(hooks: Any, optimizer: str, kinds: Sequence[str]) -> Any:
    """Run without an interruption, and return the same."""
    shell = shell_of(hooks, optimizer)
    run(shell, kinds)
    return record(shell)


def saved(path: Path, hooks: Any, optimizer: str, kinds: Sequence[str]) -> Path:
    """Run, and save."""
    shell = shell_of(hooks, optimizer)
    run(shell, kinds)
    return functrain.save(path, shell)


def run_of(hooks: Any, optimizer: str) -> Training:
    """Return a run that both interpreters can do."""
    return training(*hooks, optimizer=OPTIMIZERS[optimizer], model=normed)


def gone_on(run_: Any, state: TrainState, training_: Training, events: Sequence[Any], start: int) -> TrainState:
    """Return a pure state after some more events."""
    for place, event in enumerate(events, start):
        batch = training_.batch(place)
        state = run_.flush(state) if event == "flush" else run_.step(state, affected(batch, event))
    return state


def resumed_purely(path: Path, hooks: Any, optimizer: str, events: Sequence[Any], start: int) -> TrainState:
    """Load a pure state in the structure of a new one, and go on."""
    training_ = run_of(hooks, optimizer)
    functions, first = training_.start()
    state = functrain.load(path).into(first, training_.pipeline)
    return gone_on(functions, state, training_, events, start)


def from_shell_to_pure(path: Path, hooks: Any, optimizer: str, events: Sequence[Any], start: int) -> TrainState:
    """Load a shell, and go on in the pure engine."""
    training_ = run_of(hooks, optimizer)
    functions, _ = training_.start()
    shell = training_.shell()
    shell.load(path)
    return gone_on(functions, shell.to_pure(), training_, events, start)


def from_pure_to_shell(path: Path, hooks: Any, optimizer: str, events: Sequence[Any], start: int) -> Any:
    """Load a pure state, and go on in a shell."""
    return shell_after(functrain.load(path).state, run_of(hooks, optimizer), events, start)


def shell_after(state: TrainState, training_: Training, events: Sequence[Any], start: int) -> Any:
    """Return what a shell has come to that goes on from a pure state."""
    from functrain.testing.resuming import recorded
    from functrain.testing.shell_run import ShellRun

    models = training_.model()
    shell = pure.to_shell(state, models, training_.optimizer_of(models), hooks=training_.pipeline)
    shell_run = ShellRun(training_, shell)
    for place, event in enumerate(events, start):
        shell_run.happen(event, place)
    return recorded(shell_run)
