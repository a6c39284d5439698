"""What torch.func says when a loss does what it cannot trace, as one sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

SENTENCES: Mapping[str, str] = {
    "would mutate a captured Tensor": (
        "the loss writes in place into a tensor from outside, which torch.func cannot differentiate: pass it in "
        "buffers and return (loss, buffers), or write x = x + y where the loss says x += y"
    ),
    "while the running_mean or running_var": (
        "BatchNorm updates statistics without lanes from a batch with lanes: give the buffers the lane dimension too "
        "(stack them, in_dims=0), or build the layer with track_running_stats=False"
    ),
    "vmap: inplace arithmetic": (
        "the loss writes values with lanes in place into a tensor without: give that tensor the lane dimension too "
        "(in buffers, stacked, in_dims=0), or write x = x + y where the loss says x += y"
    ),
    "data-dependent control flow": (
        "the loss asks for the value of a tensor (if tensor:, .item(), float(), int()), which under vmap has one per "
        "lane: write torch.where(condition, a, b), and give nn.BatchNorm a momentum other than None"
    ),
    "dynamic shape": (
        "the loss picks as many elements as values say (x[mask], nonzero, unique), and under vmap all lanes have one "
        "shape: keep all elements and write torch.where(mask, x, 0)"
    ),
    "Cannot access data pointer of Tensor": (
        "the loss takes a tensor out of torch (.numpy(), .tolist(), data_ptr), where torch.func cannot follow: stay in "
        "torch functions"
    ),
    "randomness error mode": (
        "the loss draws from torch's stream, in which a lane's numbers depend on how many lanes there are: take rng as "
        "a fourth argument and draw rng.uniform(shape), rng.normal(shape) or rng.keep(shape, p), or let "
        "functrain.pure.functional(models, ..., noise=True) do it"
    ),
}
"""By a part of torch's message."""


def explained(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function; an error of torch.func that it meets is raised as what its user has to do.

    A compiled call goes straight through: dynamo speaks for itself.

    Raises:
        RuntimeError: one of :data:`SENTENCES`, from torch's own error.

    >>> total = torch.zeros(())
    >>> torch.func.grad(lambda x: explained(total.add_, x))(torch.ones(()))
    Traceback (most recent call last):
    ...
    RuntimeError: the loss writes in place into a tensor from outside, which torch.func cannot differentiate: ...
    """
    if torch.compiler.is_compiling():
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        sentence = next((text for part, text in SENTENCES.items() if part in str(error)), None)
        if sentence is None:
            raise
        raise RuntimeError(sentence) from error
