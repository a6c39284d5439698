"""One toy on both sides: a weight, an SGD of learning rate 1, and a loss whose gradient is a given number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD

import functrain
from functrain import Hook, Shell, Stage, TrainState
from tests.contract.toys import push
from tests.peer.driver import PeerRun


def peer_of(model: nn.Module, *hooks: object, **options: float) -> PeerRun:
    """Build the peer's run of a model."""
    return PeerRun({"main": model}, [SGD(model.parameters(), lr=1.0, **options)], hooks)


def shell_of(model: nn.Module, *hooks: object, **options: float) -> Shell:
    """Build functrain's run of a model."""
    return functrain.Shell(model, SGD(model.parameters(), lr=1.0, **options), list(hooks))


def train(run: PeerRun | Shell, model: nn.Module, *gradients: float) -> None:
    """Run one batch per gradient on either side."""
    for gradient in gradients:
        if isinstance(run, PeerRun):
            run.batch(lambda gradient=gradient: push(model, gradient))
            continue
        with run.batch():
            run.update(push(model, gradient))


def recorder(
    log: list[Any],
    answers: Mapping[str, object] | None = None,
    *,
    name: str = "recorder",
    **options: Any,
) -> Hook:
    """Build a hook that writes down stage and `will_skip`, and gives the scripted verdict or True."""

    def record(state: TrainState, stage: Stage, will_skip: bool) -> tuple[TrainState, object, Tensor]:
        log.append((name, stage.name, will_skip))
        return state, (answers or {}).get(stage.name, True), state.loss

    return functrain.hook(record, name=name, **options)


def times(factor: float, name: str, **options: Any) -> Hook:
    """Build a hook that multiplies the loss."""
    stages = functrain.Stage.DO_BACKWARD
    return functrain.hook(lambda s, _stage, _skip: (s, True, s.loss * factor), name=name, stages=stages, **options)


def message_of(kind: type[Exception], action: Callable[[], object]) -> str:
    """Return the message with which an action fails."""
    try:
        action()
    except kind as error:
        return str(error.args[0])
    raise AssertionError(f"no {kind.__name__} was raised")
