"""The loop on one rank of several, and what its validations decide: each job takes its rank first."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from functrain import EMA, Accumulate, BestAverage, Checkpoint, Shell, fit
from tests.distributed.jobs import number_shell
from tests.distributed.runs import PLANS, loss_of, micro_batch, network, whole, wrapped


class Unmeasured:
    """A loader without a length."""

    def __init__(self, batches: list[Any]) -> None:
        """Deal these, again and again."""
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        """Begin anew."""
        return iter(self.batches)


def uneven(rank: int, counts: tuple[int, int], has_length: bool) -> tuple[Any, str, list[str]]:
    """Train for two epochs with another number of batches on each rank; return what came, an error and warnings."""
    _, shell = number_shell(Accumulate(every=2))
    batches = [float(place) for place in range(counts[rank])]
    loader: Any = batches if has_length else Unmeasured(batches)
    said, seen = "", []

    def loss_of_number(model: nn.Module, batch: float) -> Tensor:
        seen.append(batch)
        return model(1.0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit(shell, loader, loss_of_number, 2, progress=False)
        except ValueError as error:
            said = str(error)
    clock = shell.state.clock
    return (seen, clock.batch, clock.step, clock.epoch), said, [str(each.message) for each in caught]


def interrupted(rank: int, folder: str) -> tuple[str, int]:
    """Interrupt all ranks in the first micro-batch of their second window; return what came of it."""
    _, shell = number_shell(Accumulate(every=2))

    def loss_of_number(model: nn.Module, batch: float) -> Tensor:
        if batch == 2.0:
            os.kill(os.getpid(), signal.SIGINT)
        return model(1.0)

    try:
        fit(shell, [0.0, 1.0, 2.0, 3.0], loss_of_number, 1, progress=False, checkpoint=Checkpoint(folder))
    except KeyboardInterrupt:
        return "interrupted", shell.state.clock.batch
    return "", 0


def carrying(rank: int, folder: str) -> str:
    """Return what is said about windows that cross epochs, where they should be saved."""
    _, shell = number_shell(Accumulate(every=2, partial="carry"))
    try:
        fit(shell, [1.0], lambda model, batch: model(batch), 1, checkpoint=Checkpoint(folder))
    except ValueError as error:
        return str(error)
    return ""


def deciding(rank: int, found: list[tuple[float, float]]) -> tuple[list[float], float, int, Any]:
    """Validate a few times; return the rates after each, the best score and its step, and the history."""
    model, _ = number_shell()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    shell = Shell(model, optimizer, [EMA(decay=0.5), BestAverage(metric="error")], plateau)
    own, rates = iter([each[rank] for each in found]), []

    def validate(_: nn.Module) -> dict[str, float]:
        rates.append(optimizer.param_groups[0]["lr"])
        return {"error": next(own)}

    history = fit(shell, [1.0], lambda model, batch: model(batch), len(found), validate=validate, progress=False)
    rates.append(optimizer.param_groups[0]["lr"])
    return rates[1:], shell.best().score, shell.best().step, [each["error"] for each in history.validations]


def validating_alone(rank: int) -> str:
    """Return what is said where ranks have validated something else."""
    _, shell = number_shell()
    try:
        shell.validated({"error": 1.0} if rank else {"accuracy": 1.0, "told": "by rank 0"})
    except ValueError as error:
        return str(error)
    return ""


def keeping(rank: int, kind: str) -> list[bool]:
    """Keep the best of two validations, and tell whether it is the average of then, however it is handed out."""
    model = wrapped(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shell = Shell(model, optimizer, [EMA(decay=0.5), BestAverage(metric="error")])
    rows = [micro_batch(PLANS["plain"], place)[0][rank::2] for place in range(3)]
    averages: list[dict[str, Tensor]] = []

    def validate(_: nn.Module) -> dict[str, float]:
        averages.append(whole(shell.state.hooks["ema"]["shadow"]))
        return {"error": (3.0, 1.0, 2.0)[len(averages) - 1]}

    fit(shell, rows, lambda model, batch: loss_of(model, batch, None), 3, validate=validate, progress=False)
    expected, best = averages[1], shell.best()
    model(rows[0])  # leaves whole parameters in a sharded root
    handed = [best.state_dict(), whole(dict(best.load_into(network()).named_parameters()))]
    best.load_into(model)
    handed.append(whole(shell.state.params["main"]))
    return [all(torch.equal(each[name], expected[name]) for name in expected) for each in handed]
