"""One run of the demo, and what came out of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import NamedTuple

import torch
from torch import nn

import functrain
from functrain._clock import Clock
from functrain.demo.digits import Batch, load_digits, shuffled
from functrain.demo.network import network
from functrain.demo.options import Options
from functrain.demo.poison import Poisoned, poison_plan
from functrain.demo.recipe import build_shell, loss_of


class Setup(NamedTuple):
    """What a run needs: the model, the shell that trains it, the poisoned batches, the held-out examples."""

    model: nn.Module
    shell: functrain.Shell
    batches: Poisoned
    held_out: Batch


@dataclass(frozen=True)
class Trial:
    """A finished run: what it ran on, its history, and both accuracies on the held-out fifth.

    Attributes:
        seconds: spent on training alone, validation left out.
    """

    options: Options
    setup: Setup
    history: functrain.History
    raw: float
    averaged: float
    seconds: float

    @property
    def clock(self) -> Clock:
        """How far the run came."""
        return self.setup.shell.state.clock

    @property
    def milliseconds_per_step(self) -> float:
        """Time of training for each step that was executed."""
        return 1000 * self.seconds / max(1, int(self.clock.step))


def prepare(options: Options) -> Setup:
    """Build what a run needs from its options.

    Raises:
        RunTooShortError: too few optimizer steps to spoil some of them.
    """
    torch.manual_seed(options.seed)
    digits = load_digits(options.seed, options.device)
    loader = shuffled(digits.train, options.seed)
    plan = poison_plan(len(loader), options.epochs, options.accumulate)
    model = network().to(options.device)
    steps = options.epochs * ceil(len(loader) / options.accumulate)
    return Setup(model, build_shell(model, options, steps), Poisoned(loader, plan), digits.held_out)


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Let torch use one thread inside: the network is too small for a second one to pay.

    It also makes the outcome independent of the number of cores, since sums are then always taken in one order.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def run(options: Options, setup: Setup, *, progress: bool = True) -> Trial:
    """Train through the hooks, and measure the raw and the averaged weights."""
    model, shell, batches, held_out = setup
    validations: list[float] = []

    def validate(model: nn.Module) -> dict[str, float]:
        start = perf_counter()
        found = accuracy(model, held_out)
        validations.append(perf_counter() - start)
        return {"accuracy": found}

    start = perf_counter()
    history = functrain.fit(shell, batches, loss_of, options.epochs, validate=validate, progress=progress)
    seconds = perf_counter() - start - sum(validations)
    raw = accuracy(model, held_out)
    with shell.averaged("ema"):
        averaged = accuracy(model, held_out)
    return Trial(options, setup, history, raw, averaged, seconds)


def accuracy(model: nn.Module, examples: Batch) -> float:
    """Return the fraction of examples that a model gets right in eval mode, and restore its mode."""
    images, labels = examples
    training = model.training
    with torch.inference_mode():
        right = model.eval()(images).argmax(dim=1) == labels
    model.train(training)
    return right.double().mean().item()
