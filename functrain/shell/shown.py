"""Averaged values in a model's own storage, for a while."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from functrain import _foreach
from functrain._state import TrainState
from functrain.shell.models import Models, Place, SavedBuffer


class Shown:
    """Averages lie over the raw values in the order in which they were entered, whatever the order they are left in.

    Raw values are kept by the tensor that they belong to: two models may share a part.
    """

    def __init__(self, models: Models) -> None:
        """Show nothing."""
        self._models = models
        self._params: dict[Place, Tensor] = {}
        self._buffers: dict[Place, SavedBuffer] = {}
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
        live, places = self._models.params[key], self._models.param_places(key)
        self._params |= {places[n]: live[n].clone() for n in slot["shadow"] if places[n] not in self._params}
        saved = zip(self._models.buffer_places(key).values(), self._models.saved_buffers(key), strict=True)
        self._buffers |= {place: buffer for place, buffer in saved if place not in self._buffers}

    def _uncover(self, key: str) -> None:
        """Write the raw values back, buffers that a forward has replaced too, then what is still shown."""
        here = self._places(key)
        self._models.restore_buffers(saved for place, saved in self._buffers.items() if place in here)
        self._write(key, self._raw_params(key), {})
        left = [(at, slot, self._places(at)) for at, slot in self._entered.values()]
        for at, slot, places in left:
            if places & here:
                self._write(at, slot["shadow"], slot["buffers"])
        covered = set[Place]().union(*(places for _, _, places in left))
        self._params = {place: value for place, value in self._params.items() if place in covered}
        self._buffers = {place: value for place, value in self._buffers.items() if place in covered}

    def _places(self, key: str) -> set[Place]:
        """Return where the tensors of a model are, by identity."""
        return {*self._models.param_places(key).values(), *self._models.buffer_places(key).values()}

    def _raw_params(self, key: str) -> dict[str, Tensor]:
        """Return the raw values of those parameters of a model that are covered."""
        places = self._models.param_places(key)
        return {name: self._params[place] for name, place in places.items() if place in self._params}

    def _raw_buffers(self, key: str) -> dict[str, Tensor]:
        """Return the raw values of those buffers of a model that are covered."""
        places = self._models.buffer_places(key)
        return {name: self._buffers[place][-1] for name, place in places.items() if place in self._buffers}

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
        if not self._entered:
            return state
        params = {key: held | self._raw_params(key) for key, held in state.params.items()}
        buffers = {key: held | self._raw_buffers(key) for key, held in state.buffers.items()}
        return state.replace(params=params, buffers=buffers)
