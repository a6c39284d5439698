"""A training machine of one's own run, without a class statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from torch import Tensor

from functrain.testing.machine import TrainingMachine
from functrain.testing.training import Training


def training_machine(
    *,
    model: Callable[[], Any],
    loss_fn: Callable[[Any, Any], Tensor],
    optimizer: Callable[[Any], Any],
    batches: Sequence[Any],
    hooks: Any = (),
    name: str = "TrainingMachine",
    **options: Any,
) -> type[TrainingMachine]:
    """Return a :class:`TrainingMachine` of one's own training run.

    Args:
        model: as all that follows of a :class:`Training`.
        loss_fn: ``loss_fn(model, batch) -> loss``.
        optimizer: makes the optimizer from the parameters.
        batches: micro-batches.
        hooks: a hook, a pipeline, a list of both, or a strategy for any of them.
        name: of the class, by which a failing run calls it.
        options: ``beside_pure`` and ``finite``.

    Raises:
        TypeError: an option that there is not.

    >>> import torch
    >>> MyMachine = training_machine(
    ...     model=lambda: torch.nn.Linear(2, 1),
    ...     loss_fn=lambda model, x: model(x).square().mean(),
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     batches=[torch.ones(3, 2)],
    ...     name="MyMachine",
    ... )
    >>> state = MyMachine()
    >>> state.step(place=0)
    >>> state.laws_hold()
    """
    drawn = isinstance(hooks, st.SearchStrategy)
    training = Training(model, loss_fn, optimizer, batches, () if drawn else hooks)
    return type(name, (TrainingMachine,), {"training": training, "hooks": hooks if drawn else None, **options})
