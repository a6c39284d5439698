"""One batch, and the micro-batches that it can be cut into."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from functrain import _tree
from functrain._state import TrainState
from functrain._wrapper import innermost
from functrain.hooks.accumulate import Accumulate
from functrain.hooks.average import Average
from functrain.testing.differences import require_none, unlike
from functrain.testing.training import Training


def check_micro_batches(training: Training, parts: int = 2, *, tolerance: float = 1e-5) -> None:
    """Check that micro-batches under ``Accumulate(every=parts)`` update as the whole batches do.

    Parameters, averages and the counters of steps are compared, after each batch.

    Args:
        training: a run without Accumulate, whose loss is a mean over the first dimension of the batch.
        parts: into how many equal parts each batch is cut.
        tolerance: relative and absolute.

    Raises:
        Disagreement: with every path at which they differ.
        ValueError: a pipeline that accumulates already, or a batch that cannot be cut into equal parts.

    >>> import torch
    >>> training = Training(
    ...     model=lambda: torch.nn.Linear(2, 1),
    ...     loss_fn=lambda model, x: model(x).square().mean(),
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     batches=[torch.ones(4, 2), torch.eye(2)],
    ... )
    >>> check_micro_batches(training)
    """
    accumulated = training.with_hooks(Accumulate(every=parts), training.pipeline)
    (whole, start), (cut, state) = training.start(), accumulated.start()
    for place, batch in enumerate(training.batches):
        start = whole.step(start, batch)
        for part in _parts(batch, parts):
            state = cut.step(state, part)
        lines = unlike(_outcome(training, start), _outcome(training, state), "state", tolerance)
        require_none(f"one batch and {parts} micro-batches, after batch {place},", lines)


def _parts(batch: Any, parts: int) -> list[Any]:
    """Cut every tensor of a batch into equal parts along its first dimension; all else goes into each part."""
    return [_tree.map_leaves(partial(_part, parts, place), batch) for place in range(parts)]


def _part(parts: int, place: int, leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.ndim:
        return leaf
    if leaf.shape[0] % parts:
        msg = f"a batch of {leaf.shape[0]} cannot be cut into {parts} equal parts"
        raise ValueError(msg)
    return leaf.chunk(parts)[place]


def _outcome(training: Training, state: TrainState) -> dict[str, Any]:
    """Return what an update leaves behind, however many micro-batches it took."""
    clock = state.clock
    averages = {each.name: state.hooks[each.name] for each in training.pipeline if isinstance(innermost(each), Average)}
    counters = {"step": clock.step, "skipped": clock.skipped, "optimizer_steps": clock.optimizer_steps}
    return {"params": state.params, "clock": counters, "hooks": averages}
