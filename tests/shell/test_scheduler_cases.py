"""The rows F of the cases: schedulers, counters, and what is refused at SETUP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, StepLR

from functrain import Accumulate, Hook, Shell, Stage, observe
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import half, vetoing

INF = float("inf")


def rate(shell: Shell, key: str = "main") -> float:
    """Return the learning rate of an optimizer."""
    return shell._driver.applier.optimizers.by_key[key].param_groups[0]["lr"]


def scheduled(hooks: Any, gamma: float = 0.5) -> Shell:
    """Return a shell whose rate is multiplied by gamma at every step."""
    model = Weight()
    optimizer = SGD(model.parameters(), lr=1.0)
    return Shell(model, optimizer, hooks, StepLR(optimizer, 1, gamma=gamma))


def test_f01_schedulers_count_steps() -> None:
    """StepLR gamma .5, 4 micro-batches, K=2: a quarter of the start."""
    shell = scheduled(Accumulate(every=2))
    run(shell, [1.0] * 4)
    assert rate(shell) == 0.25


@given(
    k=st.integers(1, 3),
    slopes=st.lists(st.sampled_from([1.0, INF]), max_size=12),
    vetoed=st.frozensets(st.integers(0, 11)),
    flush=st.booleans(),
)
def test_f01_the_rate_follows_executed_steps(k: int, slopes: list[float], vetoed: frozenset[int], flush: bool) -> None:
    """Under accumulation, vetoes, overflows and a flush: gamma to the power of executed steps."""
    shell = scheduled([Accumulate(every=k), half(init_scale=2.0**14), vetoing(vetoed)])
    run(shell, slopes)
    if flush:
        shell.flush()
    assert rate(shell) == 0.5**shell.state.clock.step
    assert shell.state.clock.step + shell.state.clock.skipped == len(slopes) // k + (flush and len(slopes) % k > 0)


def three(given_schedulers: Any) -> tuple[Shell, list[SGD]]:
    """Return a shell of three optimizers, and the optimizers."""
    models = [Weight() for _ in range(3)]
    optimizers = [SGD(each.parameters(), lr=1.0) for each in models]
    return Shell(models, optimizers, [], given_schedulers(optimizers)), optimizers


@given(present=st.lists(st.booleans(), max_size=3), mapping=st.booleans())
def test_f02_alignment_is_kept_where_some_have_none(present: Sequence[bool], mapping: bool) -> None:
    """Any pattern of schedulers and None, shorter lists and mappings too: each drives its own optimizer."""

    def make(optimizers: list[SGD]) -> Any:
        made = [
            StepLR(each, 1, gamma=0.5) if wanted else None for each, wanted in zip(optimizers, present, strict=False)
        ]
        return {str(place): each for place, each in enumerate(made)} if mapping else made

    shell, optimizers = three(make)
    with shell.batch():
        shell.update(sum(module(1.0) for module in shell._driver.applier.models.modules.values()))
    padded = [*present, False, False, False][:3]
    assert [each.param_groups[0]["lr"] for each in optimizers] == [0.5 if wanted else 1.0 for wanted in padded]


def test_f02_a_scheduler_beside_the_wrong_optimizer_is_refused() -> None:
    """A list without the None that keeps the alignment is a ValueError, not a silent swap."""
    with pytest.raises(ValueError, match="optimizer '0' drives optimizer '1'"):
        three(lambda optimizers: [StepLR(optimizers[1], 1)])


class Quasi(LBFGS):
    """A user's subclass."""


@pytest.mark.parametrize("kind", [LBFGS, Quasi])
def test_f03_lbfgs_is_refused_at_setup(kind: type[LBFGS]) -> None:
    """It calls the model several times per step: refused with that reason."""
    model = Weight()
    with pytest.raises(ValueError, match="LBFGS, which calls the model several times per step"):
        Shell(model, kind(model.parameters()), [])


def test_f04_warm_up_counts_steps_of_the_run() -> None:
    """Ten warm-up steps, two steps of two micro-batches: a fifth of the rate."""
    model = Weight()
    optimizer = SGD(model.parameters(), lr=1.0)
    warm: LRScheduler = LambdaLR(optimizer, lambda count: count / 10)
    shell = Shell(model, optimizer, Accumulate(every=2), warm)
    run(shell, [1.0] * 4)
    assert rate(shell) == pytest.approx(0.2)


class Resource(Hook):
    """A hook that is a context manager, and counts its SETUP."""

    log: Any
    stages: Any = frozenset({Stage.SETUP})

    def __enter__(self) -> Self:
        """Note it."""
        self.log.append("enter")
        return self

    def __exit__(self, *error: object) -> None:
        """Note it."""
        self.log.append("exit")

    def update(self, state: Any, stage: Stage, will_skip: Any) -> Any:
        """Note the stage."""
        self.log.append(stage.name)
        return super().update(state, stage, will_skip)


def test_f05_setup_comes_once_per_shell() -> None:
    """Entered and left three times: one SETUP at construction, and the state outlives the context."""
    log: list[str] = []
    shell = sgd_shell(Weight(), [Resource(log=log), Accumulate(every=2)])
    assert log == ["SETUP"]
    for _ in range(3):
        with shell:
            step(shell, 1.0)
    step(shell, 1.0)
    assert log == ["SETUP", *["enter", "exit"] * 3]
    assert (applied(shell), shell.state.clock.step, shell.state.clock.batch) == (2.0, 2, 4)


def test_f05_setup_sees_every_slot() -> None:
    """At SETUP the slots of all hooks exist, whatever their order."""
    seen: list[list[str]] = []
    look = observe("look", lambda state, _stage: seen.append(sorted(state.hooks)), stages=Stage.SETUP, priority=0)
    sgd_shell(Weight(), [look, Accumulate(every=2), half()])
    assert seen == [["accumulate", "look", "precision"]]
    assert torch.is_grad_enabled()
