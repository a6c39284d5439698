"""Plain names: what a parameter is called whatever wraps its model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

LAZY_WRAPPERS = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "FullyShardedDataParallel",
        "_fsdp_wrapped_module",
    ),
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",
        "_checkpoint_wrapped_module",
    ),
)
"""Wrappers whose modules are slow to import: an instance exists only where somebody has imported them."""


def _wrapped_under(module: nn.Module) -> str | None:
    """Return the attribute under which a wrapper holds its module; by type, since a user may call a child so."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        return "module"
    for source, name, attribute in LAZY_WRAPPERS:
        kind = getattr(sys.modules.get(source), name, None)
        if kind is not None and isinstance(module, kind):
            return attribute
    return None


def is_shard(module: nn.Module) -> bool:
    """Tell whether ``fully_shard`` was called on a module; who has called it has imported it.

    >>> is_shard(nn.Linear(1, 1))
    False
    """
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside any depth of wrappers.

    >>> inner = nn.Linear(1, 1)
    >>> unwrapped(inner) is inner
    True
    """
    while (attribute := _wrapped_under(module)) is not None:
        module = getattr(module, attribute)
    return module


def bare(module: nn.Module) -> nn.Module:
    """Take the wrappers out of a module, also those around its parts, in place, and return what was inside.

    >>> bare(nn.ReLU())
    ReLU()
    """
    for _, part in list(walk(module)):
        for name, child in list(part.named_children()):
            if (inner := unwrapped(child)) is not child:
                part.add_module(name, inner)
    return unwrapped(module)


def walk(module: nn.Module, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, nn.Module]]:
    """Yield every submodule once with its plain prefix, in the order of ``named_modules()``."""
    module, seen = unwrapped(module), set[int]() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    yield prefix, module
    for name, child in module.named_children():
        yield from walk(child, f"{prefix}{name}.", seen)


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return parameters by plain name, tied ones once, in the order of ``module.named_parameters()``.

    >>> list(named_parameters(nn.Sequential(nn.Linear(1, 1))))
    ['0.weight', '0.bias']
    """
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for prefix, part in walk(module):
        for name, leaf in part.named_parameters(recurse=False):
            found.setdefault(id(leaf), (prefix + name, leaf))
    return dict(found.values())


def named_buffers(module: nn.Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Return where each buffer is held, by plain name: a forward may put another tensor there."""
    found: dict[int, tuple[str, tuple[dict[str, Any], str]]] = {}
    for prefix, part in walk(module):
        for name, leaf in part.named_buffers(recurse=False):
            found.setdefault(id(leaf), (prefix + name, (part._buffers, name)))  # pyright: ignore[reportPrivateUsage] # noqa: SLF001 - the only way to see it replaced
    return dict(found.values())


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by plain name, each once.

    >>> list(named_tensors(nn.BatchNorm1d(1, affine=False)))
    ['running_mean', 'running_var', 'num_batches_tracked']
    """
    buffers = {name: held[own] for name, (held, own) in named_buffers(module).items()}
    return {**named_parameters(module), **buffers}


def saved_names(module: nn.Module) -> dict[str, str]:
    """Return every plain name of a module's state dict, with the name under which :func:`named_tensors` has it.

    >>> part = nn.Linear(1, 1, bias=False)
    >>> saved_names(nn.Sequential(part, part))
    {'0.weight': '0.weight', '1.weight': '0.weight'}
    """
    first = {id(leaf): name for name, leaf in named_tensors(module).items()}
    return {name: first[id(leaf)] for name, leaf in _saved(module, "")}


def _saved(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield what a state dict holds, tied parts under each of their names."""
    module = unwrapped(module)
    hidden = module._non_persistent_buffers_set  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - nothing else tells
    for name, leaf in module.named_parameters(recurse=False, remove_duplicate=False):
        yield prefix + name, leaf
    for name, leaf in module.named_buffers(recurse=False, remove_duplicate=False):
        if name not in hidden:
            yield prefix + name, leaf
    for name, child in module._modules.items():  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - tied ones, too
        if child is not None:
            yield from _saved(child, f"{prefix}{name}.")
