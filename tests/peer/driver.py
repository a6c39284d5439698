"""Drives the real peer's update hooks batch by batch, in the order in which its own strategy calls them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_REASON = "needs the extra `peer`: pip install nvalchemi-toolkit==0.2.0"


def peer_module(name: str) -> Any:
    """Import one of the peer's modules, or skip whatever needs it."""
    return pytest.importorskip(f"nvalchemi.{name}", reason=_REASON)


TrainingStage = peer_module("training._stages").TrainingStage
UpdateHook = peer_module("training.hooks").TrainingUpdateHook
Orchestrator = peer_module("training.hooks").TrainingUpdateOrchestrator
EMAHook = peer_module("training.hooks").EMAHook
MixedPrecisionHook = peer_module("training.hooks").MixedPrecisionHook
TrainContext = peer_module("hooks._context").TrainContext


class PeerContext(Protocol):
    """The part of the peer's context that a user's hook reads."""

    batch_count: int
    step_count: int
    loss: Tensor
    optimizers: list[Optimizer]


@dataclasses.dataclass
class Workflow:
    """What the peer's hooks ask of a strategy: devices, clearing of unowned gradients, a slot."""

    models: Mapping[str, nn.Module]
    devices: tuple[torch.device, ...] = (torch.device("cpu"),)
    published: dict[str, nn.Module] = dataclasses.field(default_factory=dict)

    def set_inference_model(self, module: nn.Module, *, model_key: str) -> None:
        """Keep what an averaging hook publishes."""
        self.published[model_key] = module

    def _zero_optimizer_filtered_gradients(self, optimizers: Sequence[Optimizer]) -> None:
        """Clear the gradients of trainable parameters that no optimizer holds."""
        owned = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        for model in self.models.values():
            for parameter in model.parameters():
                if parameter.requires_grad and id(parameter) not in owned:
                    parameter.grad = None


class PeerRun:
    """One run of the peer: the four update stages around a forward pass, and the counters after them."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[Optimizer],
        hooks: Sequence[object],
        schedulers: Sequence[LRScheduler | None] = (),
    ) -> None:
        self.models, self.optimizers, self.schedulers = dict(models), list(optimizers), list(schedulers)
        self.orchestrator = Orchestrator(*hooks)
        self.workflow = Workflow(self.models)
        self.steps = self.batches = 0
        self.context = self._new_context()
        self.orchestrator(self.context, TrainingStage.SETUP)

    @property
    def stepped(self) -> bool:
        """Whether the last batch took an optimizer step, as the peer reports it."""
        return not self.orchestrator.optimizer_step_skipped

    def batch(self, forward: Callable[[], Tensor | None], batch: object = None) -> bool:
        """Run one batch whose loss `forward` computes; True if an optimizer step was taken."""
        self.begin(batch)
        self.backward(forward())
        self.finish()
        return self.stepped

    def begin(self, batch: object = None) -> None:
        """Start a batch in a fresh context, and let BEFORE_BATCH zero the gradients."""
        self.context = self._new_context(batch)
        self.orchestrator(self.context, TrainingStage.BEFORE_BATCH)

    def backward(self, loss: Tensor | None) -> None:
        """Hand in the loss and run its backward."""
        self.context.loss = loss
        self.orchestrator(self.context, TrainingStage.DO_BACKWARD)
        self.context.loss = None if loss is None else loss.detach()

    def finish(self) -> None:
        """Step, tell the hooks, and advance the counters."""
        self.orchestrator(self.context, TrainingStage.DO_OPTIMIZER_STEP)
        self.orchestrator(self.context, TrainingStage.AFTER_OPTIMIZER_STEP)
        self.batches += 1
        self.steps += int(self.stepped)

    def _new_context(self, batch: object = None) -> Any:
        return TrainContext(
            batch=batch,
            models=self.models,
            optimizers=self.optimizers,
            lr_schedulers=self.schedulers,
            step_count=self.steps,
            global_step_count=self.steps,
            batch_count=self.batches,
            epoch_step_count=self.batches,
            workflow=self.workflow,
        )
