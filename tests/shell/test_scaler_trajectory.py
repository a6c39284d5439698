"""Loss scale, growth tracker and weights beside a real GradScaler that is driven by hand, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD

from functrain import Accumulate, Hook, MixedPrecision, Shell, Stage
from tests.scalars import Weight
from tests.scripted import vetoing

INF, NAN = float("inf"), float("nan")


class Micro(NamedTuple):
    """One micro-batch: the gradient of each model, None where it takes no part, and who vetoes it."""

    slopes: tuple[float | None, float | None]
    veto: str = ""


SLOPES = st.sampled_from([1.0, 2.0, -3.0, 2.0, 1.0, INF, NAN])
PAIRS = st.one_of(st.tuples(SLOPES, SLOPES), st.tuples(SLOPES, st.none()), st.tuples(st.none(), SLOPES))
MICROS = st.builds(Micro, PAIRS, st.sampled_from(["", "", "", "drop", "early", "late"]))
RULES = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([1.0, 3.0, 1000.0, 2.0**16, 2.0**23]),
        "growth_factor": st.sampled_from([2.0, 1.5, 1.1, 4.0]),
        "backoff_factor": st.sampled_from([0.5, 0.3, 0.9]),
        "growth_interval": st.integers(1, 4),
    }
)
BOUNDS = st.sampled_from([(1.0, 2.0**24), (2.0**-60, 2.0**100), (4.0, 4096.0)])
PLACES = {
    "drop": (Stage.DO_BACKWARD, 40),
    "early": (Stage.DO_OPTIMIZER_STEP, 15),
    "late": (Stage.DO_OPTIMIZER_STEP, 40),
}


class ByHand:
    """The recipe of torch for two optimizers and one scaler, whose update() is called only where a boundary counts."""

    def __init__(self, rule: dict[str, Any], bounds: tuple[float, float], every: int) -> None:
        """Set up models, optimizers and scaler."""
        self.models = (Weight(), Weight())
        self.optimizers = [SGD(model.parameters(), lr=1.0) for model in self.models]
        self.scaler = GradScaler("cpu", **rule)
        self.scaler.scale(torch.ones(()))  # it makes its numbers at the first call
        self.bounds, self.every, self.presented, self.entered = bounds, every, 0, 0

    def micro(self, micro: Micro) -> None:
        """Run a micro-batch, and the boundary behind it."""
        if micro.veto != "drop":
            self.scaler.scale(total(self.models, micro.slopes) / self.every).backward()
            self.entered += 1
        self.presented += 1
        if self.presented == self.every:
            self.boundary("" if micro.veto == "drop" else micro.veto)

    def boundary(self, veto: str = "") -> None:
        """Unscale, judge, step, update; an early veto, and a late one of finite gradients, is no event."""
        busy = [each for model, each in zip(self.models, self.optimizers, strict=True) if model.w.grad is not None]
        bad = [each for each in busy if not each.param_groups[0]["params"][0].grad.isfinite()]
        if self.entered and (not veto or (veto == "late" and bad)):
            for optimizer in busy:
                self.scaler.unscale_(optimizer)
                self._correct(optimizer)
                if not veto:
                    self.scaler.step(optimizer)
            self._update()
        self.presented = self.entered = 0
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _correct(self, optimizer: SGD) -> None:
        optimizer.param_groups[0]["params"][0].grad.mul_(self.every / self.entered)

    def _update(self) -> None:
        """Move the scale; a change is kept within the bounds."""
        before = self.scaler.get_scale()
        self.scaler.update()
        after = self.scaler.get_scale()
        bounded = min(max(after, self.bounds[0]), self.bounds[1])
        if after not in {before, bounded}:
            self.scaler.update(new_scale=bounded)

    def numbers(self) -> tuple[float, ...]:
        """Return scale, growth tracker and weights."""
        weights = (model.w.item() for model in self.models)
        return (self.scaler.get_scale(), self.scaler._get_growth_tracker(), *weights)


def total(models: Iterable[Weight], slopes: Iterable[float | None]) -> Any:
    """Return the sum of the losses of the models that take part."""
    return sum(model(slope) for model, slope in zip(models, slopes, strict=True) if slope is not None)


def vetoes(micros: list[Micro]) -> list[Hook]:
    """Return one hook per kind of veto; the batch of a flush is behind the last one."""
    batches = {kind: {place for place, micro in enumerate(micros) if micro.veto == kind} for kind in PLACES}
    places = [(kind, *place) for kind, place in PLACES.items()]
    return [vetoing(batches[kind], stage=stage, priority=priority, name=kind) for kind, stage, priority in places]


class InShell:
    """The same run as hooks in a shell."""

    def __init__(self, hooks: list[Hook], rule: dict[str, Any] | None) -> None:
        """Build models, optimizers and shell; with a rule the user brings a scaler."""
        self.models = (Weight(), Weight())
        self.scaler = None if rule is None else GradScaler("cpu", **rule)
        optimizers = [SGD(model.parameters(), lr=1.0) for model in self.models]
        self.shell = Shell(self.models, optimizers, hooks, scaler=self.scaler)

    def micro(self, micro: Micro) -> None:
        """Run a micro-batch."""
        with self.shell.batch():
            self.shell.update(total(self.models, micro.slopes))

    def numbers(self) -> tuple[float, ...]:
        """Return scale, growth tracker and weights; the user's scaler must show the same scale."""
        scaler = self.shell.state.scaler
        assert self.scaler is None or self.scaler.get_scale() == scaler["scale"]
        return (scaler["scale"], scaler["growth_tracker"], *(model.w.item() for model in self.models))


@given(
    micros=st.lists(MICROS, min_size=1, max_size=16),
    rule=RULES,
    bounds=BOUNDS,
    every=st.integers(1, 3),
    own=st.booleans(),
    resume=st.integers(0, 15),
)
def test_the_state_walks_the_trajectory_of_gradscaler(
    micros: list[Micro], rule: dict[str, Any], bounds: tuple[float, float], every: int, own: bool, resume: int
) -> None:
    """Any overflows, drops and vetoes, any rule, resumed anywhere: the numbers of a real GradScaler, bitwise."""
    within = {"min_scale": bounds[0], "max_scale": bounds[1], "max_consecutive": None}
    precision = MixedPrecision(precision="fp16", **within, **({} if own else rule))
    hooks = [Accumulate(every=every), precision, *vetoes(micros)]
    loop, run = ByHand(rule, bounds, every), InShell(hooks, rule if own else None)
    for place, micro in enumerate(micros):
        if place == resume:
            stored, run = run.shell.state_dict(), InShell(hooks, rule if own else None)
            run.shell.load_state_dict(stored)
        loop.micro(micro)
        run.micro(micro)
        assert run.numbers() == loop.numbers(), place
    if loop.presented:
        loop.boundary()
    run.shell.flush()
    assert run.numbers() == loop.numbers()
