"""Laws about whole runs: L13 agreement of the two interpreters, and micro-batches that equal one batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from functrain import Accumulate, Hook
from functrain._tree import paths
from functrain._wrapper import innermost
from functrain.testing.breach import Breach
from functrain.testing.close import is_close
from functrain.testing.differences import Disagreement
from functrain.testing.law import Law
from functrain.testing.oracles import check_interpreters
from functrain.testing.scene import Scene, members_of
from functrain.testing.training import Training

ROWS = 12


def training_of(hook: Hook) -> Training:
    """Return a small run on which a hook is tried: a perceptron, SGD with momentum, three micro-batches."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(ROWS, 3, generator=generator) for _ in range(3)]
    batches = [{"x": x, "tokens": place + 1} for place, x in enumerate(inputs)]
    return Training(model=_perceptron, loss_fn=_loss, optimizer=_sgd, batches=batches, hooks=hook)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))


def _loss(model: nn.Module, batch: Any) -> Tensor:
    return model(batch["x"]).square().mean()


def _sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


def check_agreement(scene: Scene) -> None:
    """Check shell against pure engine, over what the schedule of the scene lets happen."""
    training = training_of(scene.hook)
    judged(partial(check_interpreters, training, [*scene.schedule, "fine"]))


def judged(check: Callable[[], None]) -> None:
    """Run an oracle; where it finds two runs that disagree, the law is broken."""
    try:
        check()
    except Disagreement as found:
        path, _, values = found.lines[0].partition(": ")
        expected, _, other = values.partition(" != ")
        raise Breach(f"{found.what} differ", path, expected, other) from found
    except Exception as error:
        raise Breach(f"the run failed: {type(error).__name__}: {error}") from error


def of_one_model(hook: Hook) -> bool:
    """Tell hooks of the model that there is."""
    return all(getattr(innermost(each), "model_key", "main") == "main" for each in members_of(hook))


def check_micro(scene: Scene) -> None:
    """Check that ``every`` micro-batches update as the whole batch."""
    training, cut = training_of(Hook()), training_of(scene.hook)
    (whole, expected), (parts, found) = training.start(), cut.start()
    for batch in training.batches:
        expected = whole.step(expected, batch)
        for x in batch["x"].chunk(_every(scene.hook)):
            found = parts.step(found, {**batch, "x": x})
        for path, weight in paths(expected.params, "state.params").items():
            other = paths(found.params, "state.params")[path]
            if not is_close(weight, other):
                raise Breach(f"{_every(scene.hook)} micro-batches are not the whole batch", path, weight, other)


def _every(hook: Hook) -> int:
    return getattr(hook, "every")  # noqa: B009 - of an Accumulate


def counts_micro_batches(hook: Hook) -> bool:
    """Tell an accumulation without weights into which the rows of a batch divide."""
    return isinstance(hook, Accumulate) and hook.weight is None and ROWS % hook.every == 0


AGREEMENT = Law("L13 agreement", "shell and pure engine do the same", check_agreement, of_one_model, cost=20)
MICRO = Law("accumulate: k in one", "k micro-batches equal one batch", check_micro, counts_micro_batches, cost=50)
