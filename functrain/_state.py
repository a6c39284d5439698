"""The one immutable value that every hook maps to another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from functrain import _tree
from functrain._clock import Clock
from functrain._limits import Limits
from functrain._owners import Owners
from functrain._select import Flag
from functrain._stage import Stage
from functrain._tree import FrozenMap
from functrain._window import Window

STATIC = ("donated", "autocast", "rank", "world", "owners", "limits")
EMPTY: FrozenMap[Any] = FrozenMap()
Tensors: TypeAlias = FrozenMap[FrozenMap[Tensor]]


def _empty() -> FrozenMap[Any]:
    """Return the empty mapping; it is immutable, so all states may share it."""
    return EMPTY


def nothing() -> Tensor:
    """Return what stands for a loss or a metric that is not there: NaN, never None, so that the structure stays.

    On the CPU and as float32, whatever a program has set as default device and default dtype.
    """
    return torch.full((), float("nan"), dtype=torch.float32, device="cpu")


@_tree.record(*STATIC)
class TrainState(_tree.Record):
    """Everything that an update reads and writes, as one immutable pytree.

    Registered in optree (namespace ``functrain``) and in ``torch.utils._pytree``. Mappings are :class:`FrozenMap`;
    dicts given to the constructor or to :meth:`replace` are frozen.

    Attributes:
        params: ``{model_key: {name: Tensor}}``; differentiable at DO_BACKWARD, detached elsewhere.
        buffers: ``{model_key: {name: Tensor}}``.
        grads: ``{model_key: {name: Tensor}}`` of the parameters that have a gradient, each tensor once.
        loss: 0-d tensor, as transformed by the hooks so far; NaN before there is one.
        raw_loss: 0-d tensor, what the user computed.
        window: the accumulation window.
        clock: the counters.
        hooks: ``{hook_name: slot}``.
        vetoes: ``{stage: {hook_name: flag}}`` of this batch.
        stepped: ``{optimizer_key: flag}``: what the last DO_OPTIMIZER_STEP did.
        metrics: ``{name: 0-d float32 tensor}``, for logging and for later hooks.
        scaler: ``scale``, ``growth_tracker`` and ``found_inf`` per optimizer; or empty.
        hyper: ``{optimizer_key: {group: {name: number}}}``; a change holds for one step.
        opt: optimizer state (pure engine only).
        rng: 0-d int64 seed of counter-based noise.
        batch: the current batch, or an empty mapping.
        validation: the latest validation summary, or an empty mapping.
        donated: static; the leaves may be overwritten.
        autocast: static; the dtype of mixed precision, or None.
        rank: static; index of this process.
        world: static; number of processes.
        owners: static; which optimizer holds which parameter.
        limits: static; how many skips in a row each hook allows.

    >>> state = TrainState(params={"main": {"weight": torch.ones(2)}})
    >>> state.replace(grads={"main": {"weight": torch.zeros(2)}}).grads["main"]["weight"]
    tensor([0., 0.])
    """

    params: Tensors = field(default_factory=_empty)
    buffers: Tensors = field(default_factory=_empty)
    grads: Tensors = field(default_factory=_empty)
    loss: Tensor = field(default_factory=nothing)
    raw_loss: Tensor = field(default_factory=nothing)
    window: Window = field(default_factory=Window)
    clock: Clock = field(default_factory=lambda: Clock())  # noqa: PLW0108 - pyright needs the call
    hooks: FrozenMap[Any] = field(default_factory=_empty)
    vetoes: FrozenMap[FrozenMap[Flag]] = field(default_factory=_empty)
    stepped: FrozenMap[Flag] = field(default_factory=_empty)
    metrics: FrozenMap[Tensor] = field(default_factory=_empty)
    scaler: FrozenMap[Any] = field(default_factory=_empty)
    hyper: FrozenMap[Any] = field(default_factory=_empty)
    opt: FrozenMap[Any] = field(default_factory=_empty)
    rng: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64, device="cpu"))
    batch: Any = field(default_factory=_empty)
    validation: FrozenMap[Any] = field(default_factory=_empty)
    donated: bool = False
    autocast: torch.dtype | None = None
    rank: int = 0
    world: int = 1
    owners: Owners = field(default_factory=lambda: Owners({}))
    limits: Limits = ()

    def __post_init__(self) -> None:
        """Freeze the dicts that were given."""
        for name in self.names:
            object.__setattr__(self, name, _tree.freeze(getattr(self, name)))

    def slot(self, name: str) -> Any:
        """Return the slot of a hook.

        Raises:
            KeyError: no such slot; lists those there are.
        """
        try:
            return self.hooks[name]
        except KeyError:
            raise KeyError(f"no slot for a hook named {name!r}; state.hooks has {sorted(self.hooks)}") from None

    def with_slot(self, name: str, slot: Any) -> Self:
        """Return a state in which one hook's slot is another one."""
        return self.replace(hooks=self.hooks | {name: slot})

    def with_metrics(self, found: Mapping[str, Tensor]) -> Self:
        """Return a state with some metrics set, detached and as float32."""
        return self.replace(metrics=self.metrics | {name: _as_metric(value) for name, value in found.items()})

    def veto(self, stage: Stage, hook_name: str) -> Flag:
        """Tell whether a hook vetoed a stage of this batch; False if it was not asked."""
        return self.vetoes.get(stage, EMPTY).get(hook_name, False)

    def __repr__(self) -> str:
        """Show counts instead of contents: printing a state must not read a device."""
        sizes = {name: len(getattr(self, name)) for name in ("params", "buffers", "grads", "hooks", "metrics")}
        return f"TrainState({self.clock!r}, {self.window!r}, sizes={sizes})"

    def _repr_html_(self) -> str:
        """Show the state in a notebook as a tree that folds; reads no device."""
        from functrain.show.state import state

        return state(self).html()


def _as_metric(value: Tensor) -> Tensor:
    """Return a number as metrics are: detached, and float32."""
    detached = value.detach()
    return detached if detached.dtype is torch.float32 else detached.to(torch.float32)


FIELDS = tuple(each.name for each in fields(TrainState) if each.name not in STATIC)
"""The names of the fields that hold leaves: what ``Hook.writes`` may name."""
