"""What torch.func says when a function does what it cannot trace, as one sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

WRITES_OUT = "write x = x + y where it says x += y"
ASKS = (
    "asks for the value of a tensor (if tensor:, .item(), float(), int()), which has none in a graph yet, and under "
    "vmap one per lane: write torch.where(condition, a, b), and give nn.BatchNorm a momentum other than None"
)
PICKS = (
    "picks as many elements as values say (x[mask], nonzero, unique), and in a graph, as under vmap, shapes do not "
    "depend on values: keep all elements and write torch.where(mask, x, 0)"
)
SENTENCES: Mapping[str, str] = {
    "would mutate a captured Tensor": (
        "writes in place into a tensor from outside, which torch.func cannot differentiate: pass it in buffers and "
        f"return (loss, buffers), or {WRITES_OUT}"
    ),
    "while the running_mean or running_var": (
        "updates the statistics of BatchNorm, which have no lanes, from a batch with lanes: give the buffers the lane "
        "dimension too (stack them, in_dims=0), or build the layer with track_running_stats=False"
    ),
    "vmap: inplace arithmetic": (
        "writes values with lanes in place into a tensor without: give that tensor the lane dimension too (in buffers, "
        f"stacked, in_dims=0), or {WRITES_OUT}"
    ),
    "data-dependent control flow": ASKS,
    "calling .item() on a Tensor": ASKS,
    "on data-dependent expression": ASKS,
    "aten._local_scalar_dense": ASKS,
    "dynamic shape": PICKS,
    "aten.nonzero": PICKS,
    "aten._unique": PICKS,
    "aten.unique": PICKS,
    "aten.masked_select": PICKS,
    "Cannot access data pointer of Tensor": (
        "takes a tensor out of torch (.numpy(), .tolist(), data_ptr), where torch.func cannot follow: stay in torch "
        "functions"
    ),
    "randomness error mode": (
        "draws from torch's stream, in which a lane's numbers depend on how many lanes there are: take rng as a fourth "
        "argument and draw rng.uniform(shape), rng.normal(shape) or rng.keep(shape, p), or let "
        "functrain.pure.functional(models, ..., noise=True) do it"
    ),
}
"""What somebody does, by a part of torch's message."""


def explained(who: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function; an error of torch.func that it meets is raised as what its user has to do.

    What Dynamo reads goes straight through: it speaks for itself.

    Args:
        who: the subject of the sentence, "the loss".
        function: what is called.
        args: its arguments.
        kwargs: its arguments by name.

    Raises:
        RuntimeError: one of :data:`SENTENCES`, from torch's own error.

    >>> total = torch.zeros(())
    >>> torch.func.grad(lambda x: explained("the loss", total.add_, x))(torch.ones(()))
    Traceback (most recent call last):
    ...
    RuntimeError: the loss writes in place into a tensor from outside, which torch.func cannot differentiate: ...
    """
    if torch.compiler.is_dynamo_compiling():
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        sentence = next((text for part, text in SENTENCES.items() if part in str(error)), None)
        if sentence is None:
            raise
        raise RuntimeError(f"{who} {sentence}") from error
