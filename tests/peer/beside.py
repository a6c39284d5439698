"""Runs one plan through functrain's shell and through the peer, and compares all that both show."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

import functrain
from functrain import EMA, Accumulate, ClipNorm, Hook, MixedPrecision, Shell, Stage
from tests.peer.driver import EMAHook, PeerRun, peer_module
from tests.peer.plans import Plan, World, build
from tests.peer.user_hooks import PeerAccumulate, PeerClipNorm, PeerScript, mixed_precision

FIRST = 5
"""The priority of the hook that changes the loss: before accumulation, since scaling comes last here."""


def here(plan: Plan) -> list[Hook]:
    """Return functrain's hooks for a plan."""
    hooks = [_scripted(plan), _factor(plan)]
    hooks += [Accumulate(every=plan.every)] if plan.every > 1 else []
    hooks += [ClipNorm(max_norm=plan.max_norm)] if plan.max_norm is not None else []
    hooks += [MixedPrecision(precision=plan.precision, **_scaling(plan))] if plan.precision else []
    hooks += [EMA(name=f"ema_{i}", **vars(average)) for i, average in enumerate(plan.averages)]
    return _shuffled(hooks, plan.seed)


def there(plan: Plan, world: World) -> list[Any]:
    """Return the peer's hooks for a plan, in the same order."""
    hooks = [
        PeerScript(plan.vetoes, priority=plan.veto_priority),
        PeerScript(factor=plan.factor, priority=FIRST),
    ]
    hooks += [PeerAccumulate(plan.every)] if plan.every > 1 else []
    hooks += [PeerClipNorm(plan.max_norm)] if plan.max_norm is not None else []
    hooks += [mixed_precision(plan.precision, world.scaler)] if plan.precision else []
    hooks += [EMAHook(**vars(average)) for average in plan.averages]
    return _shuffled(hooks, plan.seed)


def _shuffled(hooks: list[Any], seed: int) -> list[Any]:
    """Return the hooks in an order that depends on the seed and on how many there are."""
    return random.Random(seed).sample(hooks, len(hooks))  # noqa: S311  not for secrets


def _scripted(plan: Plan) -> Hook:
    """Build the hook that vetoes by script."""

    def script(state: functrain.TrainState, stage: Stage, _will_skip: bool) -> tuple[Any, bool, Tensor]:
        return state, state.clock.batch not in plan.vetoes.get(stage.name, ()), state.loss

    stages = {Stage.BEFORE_BATCH, Stage.DO_OPTIMIZER_STEP}
    return functrain.hook(script, priority=plan.veto_priority, stages=stages)


def _factor(plan: Plan) -> Hook:
    """Build the hook that changes the loss."""
    stages = Stage.DO_BACKWARD
    multiply = lambda s, _stage, _skip: (s, True, s.loss * plan.factor if plan.factor != 1.0 else s.loss)  # noqa: E731
    return functrain.hook(multiply, name="factor", priority=FIRST, stages=stages)


def _scaling(plan: Plan) -> Mapping[str, Any]:
    """Return the settings of the loss scale, whose bounds the peer does not have."""
    return {**vars(plan.scaling), "min_scale": 2.0**-60, "max_scale": 2.0**60} if plan.scaling else {}


class Beside:
    """One plan on both sides; `run` plays it and fails at the first difference."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ours, self.theirs = build(plan), build(plan)
        self.hooks = there(plan, self.theirs)
        self.peer = PeerRun(self.theirs.models, self.theirs.optimizers, self.hooks, self.theirs.schedulers)
        self.shell = self._shell()

    def _shell(self) -> Shell:
        """Build functrain's side."""
        world, plan = self.ours, self.plan
        scaler = world.scaler if plan.own_scaler else None
        return Shell(world.models, world.optimizers, here(plan), world.schedulers, scaler=scaler, strict=plan.strict)

    def _resume(self) -> None:
        """Save functrain's side, throw it away, and load it into objects built anew; the peer goes on."""
        saved = self.shell.state_dict()
        self.ours = build(self.plan)
        self.shell = self._shell()
        self.shell.load_state_dict(saved)

    def run(self) -> None:
        """Play every batch, then one validation."""
        data = torch.Generator().manual_seed(self.plan.seed)
        for number, times in enumerate(self.plan.losses):
            if number == self.plan.resume:
                self._resume()
            x = torch.randn(4, 3, generator=data, dtype=self.plan.dtype)
            self._batch(x, times)
            differences = list(self.differences(number))
            assert not differences, f"batch {number}: {differences}"
        self._validate()

    def _batch(self, x: Tensor, times: tuple[float | None, ...]) -> None:
        """Run one batch on both sides."""
        self.peer.batch(lambda: self.theirs.loss(x, times))
        with self.shell.batch():
            self.shell.update(self.ours.loss(x, times))

    def _validate(self) -> None:
        """Let metric-driven schedulers see two validations, and compare learning rates."""
        schedulers = self.theirs.schedulers
        for loss in (1.0, 2.0):
            summary = {"total_loss": loss}
            step = peer_module("training.optimizers").step_metric_schedulers
            step(schedulers, [None] * len(schedulers), summary)
            self.shell.validated(summary)
        assert self.ours.lrs() == self.theirs.lrs()

    def differences(self, number: int) -> Iterator[str]:
        """Yield the name of everything that differs."""
        if not self.plan.partial:
            yield from self._in_counters()
            yield from self._in_averages()
        if self.ours.lrs() != self.theirs.lrs():
            yield f"learning rates: {self.ours.lrs()} instead of {self.theirs.lrs()}"
        yield from self._in_models(gradients=self.peer.stepped or (number + 1) % self.plan.every != 0)
        yield from self._in_scale()

    def _in_counters(self) -> Iterator[str]:
        """Compare whether a step was taken, and how many there were."""
        state = self.shell.state
        if any(state.stepped.values()) is not self.peer.stepped:
            yield "stepped"
        if (state.clock.step, state.clock.batch) != (self.peer.steps, self.peer.batches):
            yield "counters"

    def _in_models(self, *, gradients: bool) -> Iterator[str]:
        """Compare parameters, buffers and, unless a vetoed boundary emptied the window, gradients."""
        for key, model in self.ours.models.items():
            other = self.theirs.models[key]
            yield from _different(model.state_dict(), other.state_dict(), key)
            if gradients:
                yield from _different(_gradients(model), _gradients(other), f"gradient of {key}")

    def _in_averages(self) -> Iterator[str]:
        """Compare averages and their counters."""
        hooks = [hook for hook in self.peer.orchestrator.iter_hooks() if isinstance(hook, EMAHook)]
        for hook, name in zip(hooks, (h.name for h in self.shell.pipeline if isinstance(h, EMA)), strict=True):
            slot, averaged = self.shell.state.hooks[name], hook.get_averaged_model()
            if (slot["n_averaged"], slot["num_updates"]) != (averaged.n_averaged.item(), hook.num_updates):
                yield f"counters of {name}"
            if slot["n_averaged"]:
                module = self.shell.averaged_module(name)
                integers = hook.use_buffers  # the peer truncates averaged integers; here they are copied
                found, expected = (_tensors(m, floats_only=integers) for m in (module, averaged.module))
                yield from _different(found, expected, name)

    def _in_scale(self) -> Iterator[str]:
        """Compare the scale and its growth with the peer's scaler, and with the user's own."""
        scaler, own = self.theirs.scaler, self.ours.scaler
        if scaler is None:
            return
        expected = (scaler.get_scale(), scaler._get_growth_tracker())
        if (self.shell.state.scaler["scale"], self.shell.state.scaler["growth_tracker"]) != expected:
            yield "scale"
        if self.plan.own_scaler and own.get_scale() != expected[0]:
            yield "the user's scaler"


def _gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the gradients that there are."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def _tensors(module: torch.nn.Module, *, floats_only: bool) -> dict[str, Tensor]:
    """Return the tensors of a module."""
    held = module.state_dict()
    return {name: leaf for name, leaf in held.items() if leaf.is_floating_point() or not floats_only}


def _different(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> Iterator[str]:
    """Yield the places at which two mappings of tensors are not bitwise the same."""
    if list(found) != list(expected):
        yield f"{where}: {list(found)} instead of {list(expected)}"
    for name in found.keys() & expected.keys():
        if not same(found[name], expected[name]):
            yield f"{where}.{name}: {found[name]} instead of {expected[name]}"


def same(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are bitwise equal, where any NaN equals any other."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
