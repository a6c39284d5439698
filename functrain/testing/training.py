"""What a training run is made of, to be built as often as an oracle needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from functrain import pure
from functrain._fold import Pipeline, fold
from functrain._state import TrainState
from functrain.pure.engine import TrainStep
from functrain.shell.models import keyed
from functrain.shell.shell import Shell
from functrain.testing.counterpart import counterpart
from functrain.testing.events import Event


@dataclass(frozen=True)
class Training:
    """A model, a loss, an optimizer, hooks and batches: everything that an oracle runs twice.

    Attributes:
        model: makes the module; or a sequence or mapping of modules.
        loss_fn: ``loss_fn(model, batch) -> loss``, as for :func:`functrain.fit`; several models come as a dict.
        optimizer: makes the optimizer from the parameters; of several models, from the dict of them.
        batches: micro-batches; a run that needs more begins again with the first.
        hooks: a hook, a pipeline, or a list of both.
        twin: the optimizer of the pure engine; by default the counterpart of an SGD, Adam or AdamW.
        seed: of the initial weights, and of what a model draws in the shell.

    >>> training = Training(
    ...     model=lambda: nn.Linear(2, 1),
    ...     loss_fn=lambda model, x: model(x).square().mean(),
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     batches=[torch.ones(3, 2)],
    ... )
    >>> training.shell().state.clock.step
    0
    """

    model: Callable[[], Any]
    loss_fn: Callable[[Any, Any], Tensor]
    optimizer: Callable[[Any], Any]
    batches: Sequence[Any]
    hooks: Any = ()
    twin: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a run without batches.

        Raises:
            ValueError: there are none.
        """
        if not len(self.batches):
            msg = "Training(batches=...) needs at least one micro-batch"
            raise ValueError(msg)

    @property
    def pipeline(self) -> Pipeline:
        """The hooks, folded."""
        return fold(*self.hooks) if isinstance(self.hooks, list | tuple) else fold(self.hooks)

    def with_hooks(self, *hooks: Any) -> Training:
        """Return the same run with other hooks."""
        return replace(self, hooks=hooks)

    def batch(self, place: int) -> Any:
        """Return the micro-batch at a place of the run."""
        return self.batches[place % len(self.batches)]

    def schedule(self, *events: Event) -> list[Event]:
        """Return a schedule in which these events happen with each micro-batch: "fine", if there are none."""
        return [*(events or ("fine",))] * len(self.batches)

    def shell(self, models: Any = None) -> Shell:
        """Return a shell at the start of the run, on fresh models or on given ones."""
        if models is None:
            torch.manual_seed(self.seed)
            models = self.model()
        return Shell(models, self.optimizer_of(models), self.pipeline)

    def optimizer_of(self, models: Any) -> Any:
        """Return a new optimizer, or several, of models."""
        held: Any = models.parameters() if isinstance(models, nn.Module) else keyed(models, nn.Module, "models")
        return self.optimizer(held)

    def loss(self, models: Any, batch: Any) -> Tensor:
        """Return the loss of models on a micro-batch."""
        return self.loss_fn(models if isinstance(models, nn.Module) else keyed(models, nn.Module, "models"), batch)

    def pure(self, shell: Shell) -> TrainStep:
        """Return init, step and flush of the same run in the pure engine.

        Raises:
            ValueError: no ``twin``, and an optimizer that has no counterpart.
        """
        driver = shell._driver  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - an oracle looks inside
        modules = driver.applier.models.modules
        twin = counterpart(driver.applier.optimizers) if self.twin is None else self.twin
        models = modules["main"] if set(modules) == {"main"} else modules
        return pure.train_step(pure.functional(models, loss_fn=self.loss_fn), twin, self.pipeline)

    def start(self) -> tuple[TrainStep, TrainState]:
        """Return the run in the pure engine, and its first state."""
        torch.manual_seed(self.seed)
        models = self.model()
        run = self.pure(self.shell(models))
        return run, run.init(pure.parameters(models), pure.buffers(models), seed=self.seed)
