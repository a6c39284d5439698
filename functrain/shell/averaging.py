"""Using averages: in the model for a while, or as a module of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from functrain._foreach import whole
from functrain._state import TrainState
from functrain._wrapper import innermost
from functrain.hooks.average import Average
from functrain.hooks.ema_layout import with_stored
from functrain.shell.driver import Driver
from functrain.shell.names import bare, named_tensors, unwrapped
from functrain.shell.shown import Shown, Swap

Settle: TypeAlias = Callable[[nn.Module], None]
"""What is done to a module once it holds an average."""


class Averages:
    """Hands out what the averages of a pipeline keep in their slots."""

    def __init__(self, driver: Driver) -> None:
        """Nothing is swapped in, nothing is built."""
        self._driver = driver
        self._shown = Shown(driver.applier.models)
        self._modules: dict[str, nn.Module] = {}

    @property
    def active(self) -> bool:
        """Whether a model holds averaged weights at the moment."""
        return bool(self._shown.entered)

    def hook(self, name: str) -> Average:
        """Return an average of the pipeline by name.

        Raises:
            KeyError: lists the averages there are.
        """
        found = {each.name: innermost(each) for each in self._driver.pipeline}
        averages = {key: each for key, each in found.items() if isinstance(each, Average)}
        if name not in averages:
            msg = f"no average named {name!r}; this pipeline keeps {sorted(averages)}"
            raise KeyError(msg)
        return averages[name]

    def ready(self, name: str) -> tuple[Average, Any]:
        """Return a hook and its slot once there is an average.

        Raises:
            RuntimeError: before the first update; says when that will be.
        """
        hook, slot = self.hook(name), self._driver.state.slot(name)
        if not slot["n_averaged"]:
            msg = (
                f"{name!r} has not initialized its average: the first update comes with the first executed step that is"
                f" eligible{_rule(hook)}; so far {slot.get('completed', 0)} steps are completed"
            )
            raise RuntimeError(msg)
        return hook, slot

    def swapped(self, name: str, settle: Settle | None) -> Swap:
        """Return a context in which the model holds the average of the moment at which it is entered."""
        self.ready(name)
        return Swap(lambda: self._showing(name, settle))

    def _showing(self, name: str, settle: Settle | None) -> AbstractContextManager[None]:
        hook, slot = self.ready(name)
        model = self._driver.applier.models.modules[hook.model_key]
        return self._shown.showing(hook.model_key, slot, settle and (lambda: settle(model)))

    def raw(self, state: TrainState) -> TrainState:
        """Return the state as it is without any swap: what a checkpoint taken inside must hold."""
        return self._shown.raw(state)

    def load(self, name: str, stored: Mapping[str, Any]) -> None:
        """Put a stored average into the slot of its hook."""
        hook, state = self.hook(name), self._driver.state
        self._driver.state = state.with_slot(name, with_stored(hook, state.slot(name), stored))

    def module(self, name: str, module_factory: Callable[[], nn.Module] | None) -> nn.Module:
        """Return the module of an average, refreshed; built once, by the factory or as a copy of the model."""
        hook, slot = self.ready(name)
        source = unwrapped(self._driver.applier.models.modules[hook.model_key])
        if name not in self._modules:
            self._modules[name] = _built(module_factory or (lambda: bare(detached_copy(source))), source)
        state = self.raw(self._driver.applier.refreshed(self._driver.state))
        _load(self._modules[name], source, state, hook.model_key, slot)
        return self._modules[name]


def _rule(hook: Average) -> str:
    """Say when a hook updates, as far as it has the fields for that."""
    found = [f"{name}={getattr(hook, name)}" for name in ("start_step", "update_every") if hasattr(hook, name)]
    return f" ({', '.join(found)})" if found else ""


def _built(factory: Callable[[], nn.Module], source: nn.Module) -> nn.Module:
    """Make a module for averages and let it repair itself, before any weight is loaded."""
    made = factory().requires_grad_(requires_grad=False)
    _check_alike(made, source)
    repair = getattr(made, "modify_ema_methods", None)
    if callable(repair):
        repair()
    return made


def _check_alike(made: nn.Module, source: nn.Module) -> None:
    """Refuse a module that the averages do not fit.

    Raises:
        ValueError: the names and shapes that differ.
    """
    found, wanted = ({name: tuple(leaf.shape) for name, leaf in named_tensors(each).items()} for each in (made, source))
    if found != wanted:
        names = sorted(name for name in {**found, **wanted} if found.get(name) != wanted.get(name))
        msg = (
            f"module_factory made a {type(made).__name__} that differs from the model in {names}: it has "
            f"{[found.get(name) for name in names]} where the model has {[wanted.get(name) for name in names]}"
        )
        raise ValueError(msg)


class _Detaching(TorchFunctionMode):
    """Lets ``deepcopy`` take tensors of a graph, however deep a module keeps them: it gets their values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Copy a tensor of a graph without the graph."""
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[1].setdefault(id(args[0]), args[0].detach().clone())
        return func(*args, **(kwargs or {}))


def detached_copy(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module that may hold tensors of a graph, which ``deepcopy`` alone refuses.

    Raises:
        TypeError: the module holds something that cannot be copied; a note says what to do.

    >>> detached_copy(nn.Linear(1, 1)).weight.shape
    torch.Size([1, 1])
    """
    try:
        with _Detaching():
            return copy.deepcopy(module)
    except Exception as error:
        error.add_note(
            f"functrain: {type(module).__name__} cannot be copied; say how one is made: "
            "averaged_module(name, module_factory=lambda: ...)"
        )
        raise


def _load(target: nn.Module, source: nn.Module, raw: TrainState, key: str, slot: Any) -> None:
    """Write averages into a module, tensor by tensor on the device and in the dtype of the source."""
    values = {**raw.params[key], **raw.buffers[key], **slot["shadow"], **slot["buffers"]}
    like = {**named_tensors(source), **raw.params[key]}  # a sharded source may hold others after a forward
    with torch.no_grad():
        for name, leaf in named_tensors(target).items():
            if (leaf.device, leaf.dtype) != (like[name].device, like[name].dtype):
                leaf.data = leaf.data.to(like[name].device, like[name].dtype)
            leaf.copy_(whole(values.get(name, like[name])))  # a buffer that has appeared since is taken as it is
