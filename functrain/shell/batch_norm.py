"""Statistics of batch normalisation for weights that no forward has seen: those of an average."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - as torch's own update_bn

Forward: TypeAlias = Callable[[Any, Any], Any]
"""``forward(module, batch)``; what it returns is not looked at."""


def reestimate_batch_norm(module: nn.Module, loader: Iterable[Any], forward: Forward | None = None) -> None:
    """Set the running statistics of every BatchNorm to their mean over the batches of a loader, all or nothing.

    What ``torch.optim.swa_utils.update_bn`` computes, but only the BatchNorm layers are in training mode: dropout is
    off, as it will be when the statistics are used, and no random number is drawn. A layer that no forward reaches
    keeps its statistics. Nothing else of the module is changed.

    Args:
        module: may be wrapped.
        loader: every batch counts the same.
        forward: ``forward(module, batch)``; by default the module is called with the batch, or with the first part of
            a tuple or a list.

    Raises:
        ValueError: no BatchNorm that keeps statistics, or no batch.

    >>> module = nn.BatchNorm1d(1)
    >>> reestimate_batch_norm(module, [torch.ones(2, 1), 3 * torch.ones(2, 1)])
    >>> module.running_mean
    tensor([2.])
    """
    layers = _layers(module)
    saved = [{name: held.clone() for name, held in _statistics(layer).items()} for layer in layers]
    try:
        with _estimating(module, layers), torch.no_grad():
            _run(module, loader, forward or _called)
    except BaseException:
        _restore(zip(layers, saved, strict=True))
        raise
    _restore(pair for pair in zip(layers, saved, strict=True) if not pair[0].num_batches_tracked)


def settling(loader: Iterable[Any] | None, forward: Forward | None) -> Callable[[nn.Module], None] | None:
    """Return what re-estimates the statistics of a module from a loader, if there is one.

    Raises:
        ValueError: a forward without anything to run it on.
    """
    if loader is None:
        if forward is not None:
            msg = "forward= is for the batches of batch_norm_from=, which is not there; give both or none"
            raise ValueError(msg)
        return None
    return lambda module: reestimate_batch_norm(module, loader, forward)


def _layers(module: nn.Module) -> list[Any]:
    """Return the layers that keep statistics."""
    found = [part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    if not found:
        msg = (
            f"{type(module).__name__} has no BatchNorm that keeps running statistics, so there is nothing to estimate; "
            "leave batch_norm_from out"
        )
        raise ValueError(msg)
    return found


def _statistics(layer: Any) -> dict[str, Tensor]:
    """Return what a layer keeps, by name."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    return {name: getattr(layer, name) for name in names}


@contextmanager
def _estimating(module: nn.Module, layers: list[Any]) -> Generator[None]:
    """Let the layers take the mean of what they see, from nothing, and all others evaluate."""
    modes = [(part, part.training) for part in module.modules()]
    momenta = [(layer, layer.momentum) for layer in layers]
    try:
        for part, _ in modes:
            part.training = False
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum, layer.training = None, True
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for layer, momentum in momenta:
            layer.momentum = momentum


def _run(module: nn.Module, loader: Iterable[Any], forward: Forward) -> None:
    """Show every batch to the module."""
    count = 0
    for count, batch in enumerate(loader, start=1):  # noqa: B007 - counted
        forward(module, batch)
    if not count:
        msg = (
            "the loader gave no batch, so there is nothing to estimate statistics of BatchNorm from; an iterator is "
            "used up after one pass: give a list, a DataLoader, or an object whose __iter__ starts again"
        )
        raise ValueError(msg)


def _called(module: nn.Module, batch: Any) -> Any:
    """Call a module with a batch, or with its first part, as ``update_bn`` does."""
    return module(cast("Any", batch)[0] if isinstance(batch, tuple | list) else batch)


def _restore(saved: Iterable[tuple[Any, dict[str, Tensor]]]) -> None:
    """Write statistics back, into the same tensors."""
    with torch.no_grad():
        for layer, held in saved:
            for name, tensor in _statistics(layer).items():
                tensor.copy_(held[name])
