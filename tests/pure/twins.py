"""One run in two interpreters: a shell and a pure step from the same start, fed with the same batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from functrain import Shell, SkipLimitError, TrainState, _tree, fold, pure
from functrain.pure.numbers import is_number

COMPARED = (
    "params",
    "buffers",
    "window",
    "clock",
    "hooks",
    "vetoes",
    "stepped",
    "metrics",
    "scaler",
    "loss",
    "raw_loss",
)


Batch = dict[str, Any]


def loss_of(module: nn.Module, batch: Batch) -> Tensor:
    """Return a loss that is small for small outputs."""
    return module(batch["x"]).square().mean()


def pure_loss(module: nn.Module) -> Callable[..., Any]:
    """Return the same loss as a function of parameters and buffers."""
    template = copy.deepcopy(module)

    def loss_fn(
        params: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.func.functional_call(template, (params, buffers), (batch["x"],)).square().mean(), buffers

    return loss_fn


class Twins:
    """A shell and a pure run side by side."""

    def __init__(self, module: nn.Module, optimizer: Callable[[Any], Any], twin: Any, hooks: Any) -> None:
        self.pipeline = fold(*hooks)
        self.module = module
        self.shell = Shell(module, optimizer(module.parameters()), self.pipeline)
        self.init, self.step, self.flush_pure = pure.train_step(pure_loss(module), twin, self.pipeline)
        self.state: TrainState = self.begin()

    def begin(self, example: Batch | None = None) -> TrainState:
        """Return the first state of the pure run; with an example batch without the parameters that it does not use."""
        return self.init(dict(self.module.named_parameters()), dict(self.module.named_buffers()), batch=example)

    def run(self, batch: Batch) -> None:
        """Feed one micro-batch to both; a skip limit is raised after everything was done, so the run goes on."""
        with suppress(SkipLimitError), self.shell.batch(batch):
            self.shell.update(loss_of(self.module, batch))
        self.state = self.step(self.state, batch)

    def flush(self) -> None:
        """End the epoch in both; a skip limit is raised after everything was done."""
        with suppress(SkipLimitError):
            self.shell.flush()
        self.state = self.flush_pure(self.state)

    def swap(self, optimizer: Callable[[Any], Any]) -> None:
        """Let each run go on in the other interpreter."""
        module = copy.deepcopy(self.module)
        moved = pure.to_shell(self.state, module, optimizer(module.parameters()), hooks=self.pipeline)
        self.state, self.shell, self.module = self.shell.to_pure(), moved, module

    def differences(self, tolerance: float = 0.0) -> list[str]:
        """Return the paths at which the two states differ by more than a relative tolerance."""
        found = []
        for name in COMPARED:
            ours, theirs = (_tree.paths(getattr(each, name), name) for each in (self.shell.state, self.state))
            assert ours.keys() == theirs.keys(), (name, ours.keys() ^ theirs.keys())
            found += [path for path in ours if not alike(ours[path], theirs[path], tolerance)]
        return found


def alike(a: Any, b: Any, tolerance: float) -> bool:
    """Compare a leaf of the shell with one of the engine: numbers by value, tensors by bits or within a tolerance."""
    if is_number(b):
        b = b.item()
        a = a.item() if isinstance(a, Tensor) else a
    if not isinstance(b, Tensor):
        same = a == b or (isinstance(b, float) and isnan(a) and isnan(b))
        return same or (isinstance(b, float) and abs(a - b) <= tolerance * abs(b))
    if tolerance and b.is_floating_point():
        return torch.allclose(a, b.to(a.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)
    return a.shape == b.shape and torch.equal(a.nan_to_num(nan=7.0), b.to(a.dtype).nan_to_num(nan=7.0))
