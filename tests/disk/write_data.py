"""Writes the checkpoints that are kept as data, once for each version: ``python -m tests.disk.write_data``.

They are never written again for a version that has been released: what it wrote must load for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import functrain
from functrain import EMA, Accumulate, ClipNorm, FixedLimit, Shell, SkipNonFinite, SkipSpikes, TrainState, pure
from functrain.disk.layout import VERSION
from tests.scalars import Weight, run
from tests.scripted import half

DATA = Path(__file__).parent / "data" / f"version{VERSION}"
BEFORE, AFTER = [0.5, 0.25, float("nan"), 1.0, 0.5], [0.25, 0.125, 0.5]
"""Slopes before and after the save; all numbers are short in binary, so that any version of torch computes the same."""


def hooks(*, scaled: bool) -> Any:
    """Return a pipeline of all families."""
    members = [Accumulate(every=2), ClipNorm(max_norm=64.0), SkipNonFinite(), SkipSpikes(by=FixedLimit(limit=100.0))]
    return functrain.fold(*members, EMA(decay=0.5), *([half()] if scaled else []))


def shell() -> Shell:
    """Return a shell with momentum and a schedule."""
    model = Weight([0.0, 1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    return Shell(model, optimizer, hooks(scaled=True), torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))


def loss_of(params: Any, _buffers: Any, slope: Tensor) -> Tensor:
    """Return a loss whose gradient is the slope."""
    return (params["w"] * slope).sum()


def pure_run() -> tuple[Any, TrainState]:
    """Return the functions of a pure run, and its first state."""
    functions = pure.train_step(loss_of, pure.sgd(0.5, momentum=0.5), hooks(scaled=False))
    return functions, functions.init({"w": torch.tensor([0.0, 1.0])}, seed=3)


def stepped(functions: Any, state: TrainState, slopes: list[float]) -> TrainState:
    """Return a pure state after some slopes."""
    for slope in slopes:
        state = functions.step(state, torch.tensor(slope))
    return state


def main() -> None:
    """Write both."""
    trained = shell()
    run(trained, BEFORE)
    functrain.save(DATA / "shell", trained, data={"place": 5})
    functions, state = pure_run()
    functrain.save(DATA / "pure", stepped(functions, state, BEFORE), pipeline=hooks(scaled=False))


if __name__ == "__main__":
    main()
