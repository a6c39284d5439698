"""Models that own more parameters than they use, in the shell and in the pure engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from functrain import Shell, TrainState, _tree, pure
from functrain.pure.drawing import Drawing
from functrain.testing.differences import alike
from functrain.testing.twins import COMPARED


class Spare(nn.Module):
    """A layer, and another one that no forward uses."""

    def __init__(self, *after: nn.Module) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 3)
        self.layer, self.after = nn.Linear(3, 3), nn.Sequential(*after)

    def forward(self, x: Tensor) -> Tensor:
        """Use one layer."""
        return self.after(self.layer(x))


class Tied(Spare):
    """Two layers with one weight, which one use is enough to train."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(3, 3)
        self.again.weight = self.layer.weight


def one(models: nn.Module, batch: Tensor) -> Tensor:
    """Return the loss of one model."""
    return models(batch).square().mean()


def two(models: dict[str, nn.Module], batch: Tensor) -> Tensor:
    """Return a loss that uses one of several models and a part of another."""
    return models["first"](models["second"](batch)).square().mean()


class Case(NamedTuple):
    """Models, their loss, and the names of what that does not use."""

    models: Callable[[], Any]
    loss: Callable[[Any, Tensor], Tensor]
    unused: set[tuple[str, str]]


SPARE = {("main", "spare.weight"), ("main", "spare.bias")}
CASES = {
    "plain": Case(Spare, one, SPARE),
    "batch norm": Case(lambda: Spare(nn.BatchNorm1d(3)), one, SPARE),
    "dropout": Case(lambda: Spare(nn.Dropout(0.5)), one, SPARE),
    "tied": Case(Tied, one, SPARE | {("main", "again.bias")}),
    "several": Case(
        lambda: {"first": nn.Linear(3, 1), "idle": nn.Linear(1, 1), "second": Spare(nn.Tanh())},
        two,
        {("idle", "weight"), ("idle", "bias"), ("second", "spare.weight"), ("second", "spare.bias")},
    ),
}


def built(case: Case) -> Any:
    """Return the models of a case, the same each time."""
    torch.manual_seed(0)
    return case.models()


def batch(place: int) -> Tensor:
    """Return a batch."""
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(place))


def leaves_of(models: Any) -> list[nn.Parameter]:
    """Return all parameters of one model or several."""
    return [
        leaf for model in (models.values() if isinstance(models, dict) else [models]) for leaf in model.parameters()
    ]


def feed(shell: Shell, models: Any, case: Case, place: int) -> None:
    """Run one micro-batch in a shell, with the noise that the pure engine has there."""
    with shell.batch(), Drawing(pure.Noise(0, place)):
        shell.update(case.loss(models, batch(place)))


def differing(shell: Shell, state: TrainState) -> list[str]:
    """Return the paths at which a shell and a pure state differ in a bit."""
    found: list[str] = []
    for field in COMPARED:
        ours, theirs = (_tree.paths(getattr(each, field), field) for each in (shell.state, state))
        assert ours.keys() == theirs.keys()
        found += [path for path in ours if not alike(ours[path], theirs[path], 0.0)]
    return found
