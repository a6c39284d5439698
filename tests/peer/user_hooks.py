"""Update hooks as a user of the peer writes them: accumulation, clipping, vetoes by script."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from tests.peer.driver import MixedPrecisionHook, PeerContext, TrainingStage, UpdateHook

Verdict = tuple[bool, Tensor | None]


class PeerAccumulate(UpdateHook):
    """One step every so many batches: keeps gradients inside a window, and steps when it closes."""

    priority = 10

    def __init__(self, every: int) -> None:
        self.every = every

    def __call__(self, ctx: PeerContext, stage: Enum, _will_skip: bool) -> Verdict:
        """Veto by the place in the window, and take the mean over it."""
        place = ctx.batch_count % self.every
        match stage:
            case TrainingStage.BEFORE_BATCH:
                return place == 0, ctx.loss
            case TrainingStage.DO_BACKWARD:
                return True, ctx.loss / self.every
            case TrainingStage.DO_OPTIMIZER_STEP:
                return place == self.every - 1, ctx.loss
            case _:
                return True, ctx.loss


class PeerClipNorm(UpdateHook):
    """Clips all optimizers' parameters together by their norm, unless the step is skipped anyway."""

    priority = 30

    def __init__(self, max_norm: float) -> None:
        self.max_norm = max_norm
        self.norm: Tensor | None = None

    def __call__(self, ctx: PeerContext, stage: Enum, will_skip: bool) -> Verdict:
        """Clip just before the step."""
        if stage is TrainingStage.DO_OPTIMIZER_STEP and not will_skip:
            parameters = [p for o in ctx.optimizers for group in o.param_groups for p in group["params"]]
            self.norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
        return True, ctx.loss


class PeerFinite(UpdateHook):
    """Vetoes a step whose loss or gradient norm is not finite."""

    priority = 40

    def __init__(self, clip: PeerClipNorm) -> None:
        self.clip = clip

    def __call__(self, ctx: PeerContext, stage: Enum, _will_skip: bool) -> Verdict:
        """Read the loss, and the norm that clipping has just taken."""
        if stage is not TrainingStage.DO_OPTIMIZER_STEP or self.clip.norm is None:
            return True, ctx.loss
        return bool(torch.isfinite(ctx.loss) and torch.isfinite(self.clip.norm)), ctx.loss


class PeerScript(UpdateHook):
    """Vetoes the named stages in given batches, and scales the loss by a constant."""

    def __init__(
        self, vetoes: Mapping[str, Collection[int]] | None = None, *, priority: int = 40, factor: float = 1.0
    ) -> None:
        self.vetoes, self.priority, self.factor = dict(vetoes or {}), priority, factor

    def __call__(self, ctx: PeerContext, stage: Enum, _will_skip: bool) -> Verdict:
        """Veto if the script says so."""
        loss = ctx.loss
        if stage is TrainingStage.DO_BACKWARD and self.factor != 1.0:
            loss = loss * self.factor
        return ctx.batch_count not in self.vetoes.get(stage.name, ()), loss


class PeerRecorder(UpdateHook):
    """Writes down what it was called with, and answers as it was told to."""

    def __init__(
        self,
        answers: Mapping[str, object] | None = None,
        *,
        priority: int = 50,
        log: list[object] | None = None,
    ) -> None:
        self.answers, self.priority = dict(answers or {}), priority
        self.log: list[object] = [] if log is None else log

    def __call__(self, ctx: PeerContext, stage: Enum, will_skip: bool) -> object:
        """Record, then give the scripted answer or the default one."""
        self.log.append((self, stage.name, will_skip))
        return self.answers.get(stage.name, (True, ctx.loss))


def mixed_precision(precision: str, scaler: torch.amp.GradScaler | None = None) -> Any:
    """The peer's own precision hook, with a scaler of other dynamics than its default where one is given."""
    hook = MixedPrecisionHook(precision=precision)
    if scaler is not None:
        hook._scaler = scaler
    return hook
