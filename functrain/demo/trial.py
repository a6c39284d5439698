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
from functrain.demo.digits import ALONE, Batch, load_digits, shuffled
from functrain.demo.network import network
from functrain.demo.options import Options
from functrain.demo.poison import Poisoned, poison_plan
from functrain.demo.purely import PureRun, Validate
from functrain.demo.ranks import Place
from functrain.demo.recipe import build_shell, loss_of
from functrain.demo.saving import UNSAVED, Saving


class Setup(NamedTuple):
    """What a run needs.

    Attributes:
        model: what is trained.
        shell: what trains it; or, after a pure run, what has taken it over.
        batches: the poisoned ones.
        held_out: examples to measure on.
        pure: what trains it instead of the shell, if anything does.
    """

    model: nn.Module
    shell: functrain.Shell
    batches: Poisoned
    held_out: Batch
    pure: PureRun | None = None

    @property
    def clock(self) -> Clock:
        """How far the run has come."""
        return (self.pure or self.shell).state.clock


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


def prepare(options: Options, place: Place = ALONE) -> Setup:
    """Build what a run needs from its options.

    Of several processes only the first gets bad batches; that no other steps on them either is what is shown.

    Raises:
        RunTooShortError: too few optimizer steps to spoil some of them.
        ValueError: the pure engine in several processes.
    """
    if place.world > 1 and options.engine == "pure":
        raise ValueError("--engine pure trains in one process; leave it out, or start one")
    torch.manual_seed(options.seed)
    digits = load_digits(options.seed, options.device)
    loader = shuffled(digits.train, options.seed, place)
    plan = poison_plan(len(loader), options.epochs, options.accumulate)
    model = network().to(options.device)
    steps = options.epochs * ceil(len(loader) / options.accumulate)
    shell = build_shell(place.wrapped(model), options, steps)
    pure = PureRun(model, shell.pipeline, steps, options.seed) if options.engine == "pure" else None
    return Setup(model, shell, Poisoned(loader, plan if place.is_first else {}), digits.held_out, pure)


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
def run(options: Options, setup: Setup, *, progress: bool = True, saving: Saving = UNSAVED) -> Trial:
    """Train through the hooks, and measure the raw and the averaged weights."""
    validations: list[float] = []

    def validate(model: nn.Module) -> dict[str, float]:
        start = perf_counter()
        found = accuracy(model, setup.held_out)
        validations.append(perf_counter() - start)
        return {"accuracy": found}

    start = perf_counter()
    setup, history = _trained(options, setup, validate, saving, progress=progress)
    seconds = perf_counter() - start - sum(validations)
    raw = accuracy(setup.model, setup.held_out)
    with setup.shell.averaged("ema"):
        averaged = accuracy(setup.model, setup.held_out)
    return Trial(options, setup, history, raw, averaged, seconds)


def _trained(
    options: Options, setup: Setup, validate: Validate, saving: Saving, *, progress: bool
) -> tuple[Setup, functrain.History]:
    """Train by the engine of the options; either way a shell holds the outcome."""
    if setup.pure is None:
        history = functrain.fit(
            setup.shell,
            setup.batches,
            loss_of,
            options.epochs,
            validate=validate,
            progress=progress,
            checkpoint=saving.checkpoint,
            resume=saving.resume,
        )
        return setup, history
    history = setup.pure.train(setup.batches, options.epochs, validate, saving, progress=progress)
    return setup._replace(shell=setup.pure.to_shell()), history


def accuracy(model: nn.Module, examples: Batch) -> float:
    """Return the fraction of examples that a model gets right in eval mode, and restore its mode."""
    images, labels = examples
    training = model.training
    with torch.inference_mode():
        right = model.eval()(images).argmax(dim=1) == labels
    model.train(training)
    return right.double().mean().item()
