"""Drawn training runs: what is trained, how it is updated, and what happens in each batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

MODELS = ("mlp", "norm", "tied", "frozen", "two")
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "groups")
SCHEDULERS = (None, "step", "exponential", "lambda", "plateau")


class Tied(nn.Module):
    """An autoencoder whose two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        """Encode and decode."""
        return self.decoder(torch.tanh(self.encoder(x)))


def build_models(kind: str) -> dict[str, nn.Module]:
    """Build the models of one kind, by key."""
    if kind == "two":
        return {
            "student": nn.Linear(3, 2),
            "teacher": nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        }
    if kind == "tied":
        return {"main": Tied()}
    middle = nn.BatchNorm1d(4) if kind == "norm" else nn.Tanh()
    model = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2))
    if kind == "frozen":
        model[0].bias.requires_grad_(requires_grad=False)
    return {"main": model}


def build_optimizer(kind: str, parameters: list[nn.Parameter], lr: float) -> Optimizer:
    """Build one optimizer of one kind."""
    match kind:
        case "sgd":
            return torch.optim.SGD(parameters, lr=lr)
        case "momentum":
            return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.1)
        case "adam":
            return torch.optim.Adam(parameters, lr=lr)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.1)
        case _:
            groups = [{"params": parameters[:1], "lr": lr / 3}, {"params": parameters[1:], "weight_decay": 0.3}]
            return torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)


def build_scheduler(kind: str | None, optimizer: Optimizer) -> lr_scheduler.LRScheduler | None:
    """Build one scheduler of one kind, or none."""
    match kind:
        case "step":
            return lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        case "exponential":
            return lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        case "lambda":
            return lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        case "plateau":
            return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        case _:
            return None


@dataclasses.dataclass(frozen=True)
class Average:
    """The settings of one moving average."""

    model_key: str
    decay: float
    update_every: int
    start_step: int
    use_buffers: bool
    num_updates: int


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The settings of a loss scaler."""

    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run. `losses` holds for each batch what each model's loss is multiplied by, or None to leave it out."""

    model: str
    optimizers: tuple[str, ...]
    schedulers: tuple[str | None, ...]
    every: int
    max_norm: float | None
    averages: tuple[Average, ...]
    precision: str | None
    losses: tuple[tuple[float | None, ...], ...]
    vetoes: Mapping[str, frozenset[int]]
    factor: float = 1.0
    scaling: Scaling | None = None
    own_scaler: bool = False
    dtype: torch.dtype = torch.float32
    strict: bool = False
    resume: int | None = None
    wide_loss: bool = True
    partial: bool = False
    seed: int = 0

    @property
    def veto_priority(self) -> int:
        """Where the script stands: before loss scaling, since no veto may follow the peer's unscaling."""
        return 15 if self.precision == "float16" else 40


@dataclasses.dataclass(frozen=True)
class World:
    """The mutable objects of one run: built twice from one plan, they are equal and share nothing."""

    models: dict[str, nn.Module]
    optimizers: list[Optimizer]
    schedulers: list[lr_scheduler.LRScheduler | None]
    scaler: torch.amp.GradScaler | None
    dtype: torch.dtype
    wide_loss: bool

    def loss(self, x: Tensor, times: tuple[float | None, ...]) -> Tensor:
        """Compute the loss of one batch: in the precision of the parameters, or in that of autocast."""
        pairs = zip(self.models.values(), times, strict=True)
        parts = [self._part(model(x), factor) for model, factor in pairs if factor is not None]
        return sum(parts[1:], parts[0])

    def _part(self, output: Tensor, factor: float) -> Tensor:
        """Compute the loss of one model's output."""
        wide = output.to(self.dtype) if self.wide_loss else output
        return (wide - 1).square().mean() * factor

    def lrs(self) -> list[float]:
        """Return the learning rate of each group of each optimizer."""
        return [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]


def build(plan: Plan) -> World:
    """Build the world of a plan, always the same."""
    torch.manual_seed(plan.seed)
    models = {key: model.to(plan.dtype) for key, model in build_models(plan.model).items()}
    pieces = _split(models, len(plan.optimizers))
    optimizers = [build_optimizer(kind, held, 0.05) for kind, held in zip(plan.optimizers, pieces, strict=True)]
    kinds = zip(plan.schedulers, optimizers, strict=False)
    schedulers = [build_scheduler(kind, optimizer) for kind, optimizer in kinds]
    scaler = torch.amp.GradScaler("cpu", **dataclasses.asdict(plan.scaling)) if plan.scaling else None
    return World(models, optimizers, schedulers, scaler, plan.dtype, plan.wide_loss)


def _split(models: Mapping[str, nn.Module], count: int) -> list[list[nn.Parameter]]:
    """Share the parameters out in their own order: a model each for several, else halves of the one."""
    owned = [list(model.parameters()) for model in models.values()]
    if len(owned) == count:
        return owned
    flat = [parameter for held in owned for parameter in held]
    return [flat] if count == 1 else [flat[: len(flat) // 2], flat[len(flat) // 2 :]]
