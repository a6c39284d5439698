"""Small models of several kinds, with optimizers and schedulers: what oracles train twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR

WIDTH = 3


class Batch(NamedTuple):
    """One micro-batch: data, the models that take part, its weight, and what is wrong with it."""

    inputs: Tensor
    targets: Tensor
    used: tuple[int, ...] = (0, 1)
    weight: int = 1
    poison: dict[int, str] = {}  # noqa: RUF012 - never written


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Use it twice."""
        return self.head(self.second(self.first(inputs).tanh()).tanh())


def mlp() -> nn.Module:
    """Return two layers."""
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, 2))


def normalised() -> nn.Module:
    """Return a model with running statistics and with noise."""
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Dropout(0.25), nn.GELU(), nn.Linear(4, 2))


def frozen() -> nn.Module:
    """Return a model whose first layer, and one bias behind it, does not train."""
    made = mlp()
    made[0].requires_grad_(requires_grad=False)
    made[2].bias.requires_grad_(requires_grad=False)
    return made


MODELS: dict[str, tuple[Callable[[], nn.Module], ...]] = {
    "mlp": (mlp,),
    "normalised": (normalised,),
    "tied": (Tied,),
    "frozen": (frozen,),
    "groups": (mlp,),
    "split": (mlp,),
    "two": (mlp, normalised),
    "shared": (Tied, mlp),
}
"""Models by the name of a plant; "groups", "split" and "shared" differ in who optimizes what."""

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda held: SGD(held, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda held: Adam(held, lr=0.01, amsgrad=True),
    "adamw": lambda held: AdamW(held, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda held: RMSprop(held, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda held: Adagrad(held, lr=0.1, lr_decay=0.01),
}

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "none": lambda _: None,
    "step": lambda each: StepLR(each, step_size=2, gamma=0.5),
    "cosine": lambda each: CosineAnnealingLR(each, T_max=3),
    "warmup": lambda each: LambdaLR(each, lambda step: min(1.0, (step + 1) / 4)),
    "cycle": lambda each: OneCycleLR(each, max_lr=0.2, total_steps=100, cycle_momentum="momentum" in each.defaults),
}


@dataclass
class Plant:
    """Modules, optimizers and schedulers by key, made twice alike from one seed."""

    modules: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    schedulers: dict[str, Any] = field(default_factory=dict[str, Any])
    loss: str = "mse"

    def loss_of(self, batch: Batch) -> Tensor:
        """Return the loss of a micro-batch: one part per model that takes part, poisoned where the batch says so."""
        parts: list[Tensor] = []
        for place, module in enumerate(self.modules.values()):
            if place in batch.used:
                parts.append(poisoned(LOSSES[self.loss](module(batch.inputs), batch.targets), module, batch, place))
        return parts[0] if len(parts) == 1 else parts[0] + 0.5 * parts[1]


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": mse_loss,
    "entropy": lambda out, targets: cross_entropy(out, targets.argmax(dim=1)),
    "low": lambda out, _: out.mean() + (out * out).mean(),
}
""""low" stays in the dtype of autocast; the others are float32 there."""


def poisoned(loss: Tensor, module: nn.Module, batch: Batch, place: int) -> Tensor:
    """Return the loss, an infinite one, or one that is finite and has a gradient of NaN."""
    kind = batch.poison.get(place)
    if kind == "loss":
        return loss * float("inf")
    if kind == "gradient":
        trained = next(leaf for leaf in module.parameters() if leaf.requires_grad)
        return loss + (trained - trained.detach()).abs().sum().sqrt()
    return loss


def built(name: str, optimizer: str, scheduler: str, seed: int, loss: str) -> Plant:
    """Build a plant; the same arguments give the same weights and the same noise to come."""
    torch.manual_seed(seed)
    made = [build() for build in MODELS[name]]
    modules = {"main": made[0]} if len(made) == 1 else {str(place): each for place, each in enumerate(made)}
    optimizers = {key: OPTIMIZERS[optimizer](held) for key, held in holdings(name, modules).items()}
    schedulers = {key: SCHEDULERS[scheduler](each) for key, each in optimizers.items()}
    return Plant(modules, optimizers, schedulers, loss)


def holdings(name: str, modules: dict[str, nn.Module]) -> dict[str, Any]:
    """Return what each optimizer holds."""
    if name == "groups":
        weights, biases = by_dimension(modules["main"])
        return {"main": [{"params": biases, "lr": 0.03}, {"params": weights}]}
    if name == "split":
        weights, biases = by_dimension(modules["main"])
        return {"biases": biases, "weights": weights}
    if name == "shared":
        return {"all": [leaf for each in modules.values() for leaf in each.parameters()]}
    return {key: each.parameters() for key, each in modules.items()}


def by_dimension(module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return matrices and vectors."""
    leaves = list(module.parameters())
    return [leaf for leaf in leaves if leaf.ndim > 1], [leaf for leaf in leaves if leaf.ndim == 1]
