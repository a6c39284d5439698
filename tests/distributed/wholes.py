"""Whole tensors of sharded runs, and looks at a run in the middle of a window: each job takes its rank first."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

import functrain
from functrain import Checkpoint, fit
from tests.distributed.jobs import adam_shell, go_on
from tests.distributed.runs import loss_of, network, outcome, whole, wrapped


def gathering(rank: int, kind: str, world: int, path: str) -> dict[str, Any]:
    """Train, gather, save the average, and go on."""
    shell = adam_shell(model := wrapped(kind))
    go_on(shell, model, range(4), rank, world)
    found = {"state": shell.gathered_state_dict(), "average": shell.gathered_average()}
    functrain.save_average(path, shell)
    expected = whole(shell.state.hooks["ema"]["shadow"])
    go_on(shell, model, range(4, 8), rank, world)
    return found | {"expected": expected, "later": outcome(shell)}


def taken_over(state: dict[str, Any]) -> Any:
    """Let one process go on with what was gathered."""
    shell = adam_shell(model := network())
    shell.load_state_dict(state)
    go_on(shell, model, range(4, 8), 0, 1)
    return outcome(shell)


def refused(rank: int, path: str) -> dict[str, str]:
    """Return what is said about a sharded model that should be saved as a whole."""
    shell = adam_shell(model := wrapped("fsdp"))
    go_on(shell, model, range(2), rank, 2)
    calls = {
        "save": lambda: functrain.save(path, shell),
        "load": lambda: shell.load(path),
        "pure": shell.to_pure,
        "fit": lambda: fit(shell, [], loss_of, 1, checkpoint=Checkpoint(path)),  # type: ignore[arg-type]
        "resume": lambda: fit(shell, [], loss_of, 1, resume=path),  # type: ignore[arg-type]
    }
    return {name: said_by(call) for name, call in calls.items()}


def said_by(call: Any) -> str:
    """Return the error of a call."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def looking(rank: int, kind: str) -> dict[str, str]:
    """Return what is said about copies in the middle of a window."""
    shell = adam_shell(model := wrapped(kind))
    go_on(shell, model, range(3), rank, 2)
    stored = adam_shell(wrapped(kind)).state_dict()
    calls = {
        "save": lambda: functrain.save("nowhere", shell),
        "gathered_state_dict": shell.gathered_state_dict,
        "snapshot": shell.snapshot,
        "state_dict": shell.state_dict,
        "load_state_dict": lambda: shell.load_state_dict(stored),
    }
    return {name: said_by(call) for name, call in calls.items()}


def returning(rank: int, kind: str, between: int) -> tuple[Any, Any]:
    """Train, go on for some micro-batches and back, and train again; return what came of both ways."""
    outcomes: list[Any] = []
    for detour in (0, between):
        shell = adam_shell(model := wrapped(kind))
        go_on(shell, model, range(4), rank, 2)
        taken, stored = shell.snapshot(), shell.state_dict()
        go_on(shell, model, range(20, 20 + detour), rank, 2)
        shell.restore(taken)
        go_on(shell, model, range(30, 30 + detour), rank, 2)
        with suppress(ValueError):
            shell.load_state_dict(stored)
        shell.restore(taken)
        go_on(shell, model, range(4, 8), rank, 2)
        outcomes.append(outcome(shell))
    return outcomes[0], outcomes[1]


def resuming_inside(rank: int) -> tuple[Any, Any]:
    """Take a state in the middle of a window of replicas, and resume from it."""
    shell = adam_shell(model := wrapped("ddp"))
    go_on(shell, model, range(3), rank, 2)
    stored, taken = shell.state_dict(), shell.snapshot()
    go_on(shell, model, range(3, 6), rank, 2)
    expected = outcome(shell)
    shell.restore(taken)
    go_on(shell, model, range(3, 6), rank, 2)
    other = adam_shell(model := wrapped("ddp"))
    other.load_state_dict(stored)
    go_on(other, model, range(3, 6), rank, 2)
    return expected, [outcome(shell), outcome(other)]


def file_of(path: Path) -> dict[str, Tensor]:
    """Return a network's tensors from a file, as it takes them."""
    model = network()
    model.load_state_dict(load_file(path))
    return model.state_dict()
