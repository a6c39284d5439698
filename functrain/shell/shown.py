"""Averaged values in a model's own storage, for a while."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from functrain import _foreach
from functrain._state import TrainState
from functrain.shell.models import Models, SavedBuffer


class Raw(NamedTuple):
    """What a model held before any average was shown in it."""

    params: dict[str, Tensor]
    buffers: list[SavedBuffer]


class Shown:
    """Averages lie over the raw values in the order in which they were entered, whatever the order they are left in."""

    def __init__(self, models: Models) -> None:
        """Show nothing."""
        self._models = models
        self._raw: dict[str, Raw] = {}
        self._entered: dict[object, tuple[str, Any]] = {}

    def __bool__(self) -> bool:
        """Tell whether a model holds averaged values at the moment."""
        return bool(self._entered)

    @contextmanager
    def showing(self, key: str, slot: Any) -> Generator[None]:
        """Show the averages of a slot in a model, and what was there before whatever happens."""
        token = object()
        self._keep(key, slot)
        self._entered[token] = (key, slot)
        try:
            self._write(key, slot["shadow"], slot["buffers"])
            yield
        finally:
            del self._entered[token]
            self._uncover(key)

    def _keep(self, key: str, slot: Any) -> None:
        """Copy what is about to be covered for the first time."""
        self._models.refresh_params()
        if key not in self._raw:
            self._raw[key] = Raw({}, self._models.saved_buffers(key))
        kept, live = self._raw[key].params, self._models.params[key]
        kept.update({name: live[name].clone() for name in slot["shadow"] if name not in kept})

    def _uncover(self, key: str) -> None:
        """Write the raw values back, buffers that a forward has replaced too, then what is still shown."""
        raw = self._raw[key]
        self._models.restore_buffers(raw.buffers)
        self._write(key, raw.params, {})
        left = [slot for at, slot in self._entered.values() if at == key]
        for slot in left:
            self._write(key, slot["shadow"], slot["buffers"])
        if not left:
            del self._raw[key]

    def _write(self, key: str, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Copy values into the model's parameters and buffers, wherever these lie now."""
        self._models.refresh_params()
        self._models.refresh_buffers()
        live = ((self._models.params[key], params), (self._models.buffers[key], buffers))
        with torch.no_grad():
            for held, values in live:
                _foreach.copy_([held[name] for name in values], list(values.values()))

    def raw(self, state: TrainState) -> TrainState:
        """Return the state as it is without anything shown: what a checkpoint taken inside must hold."""
        for key, kept in self._raw.items():
            copies = dict(zip(self._models.buffers[key], (copy for *_, copy in kept.buffers), strict=True))
            params = state.params | {key: state.params[key] | kept.params}
            state = state.replace(params=params, buffers=state.buffers | {key: copies})
        return state
