"""Averaged values in a model's own storage, for a while."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from functrain import _foreach
from functrain._state import TrainState
from functrain.shell.models import Models, Place, SavedBuffer


class Shown:
    """Averages lie over the raw values in the order in which they were entered, whatever the order they are left in.

    Raw values are kept by the tensor that they belong to: two models may share a part. ``entered`` is what is shown.
    """

    def __init__(self, models: Models) -> None:
        """Show nothing."""
        self._models = models
        self._params: dict[Place, Tensor] = {}
        self._buffers: dict[Place, SavedBuffer] = {}
        self.entered: dict[object, tuple[str, Any]] = {}

    @contextmanager
    def showing(self, key: str, slot: Any, settle: Callable[[], None] | None = None) -> Generator[None]:
        """Show the averages of a slot in a model, and what was there before whatever happens.

        ``settle`` may write buffers of the model once its averages are there; they count as shown.
        """
        token, interrupt = object(), None
        try:
            self.entered[token] = (key, slot)
            self._keep(key, slot)
            self._write(key, slot["shadow"], slot["buffers"])
            if settle is not None:
                settle()
                self.entered[token] = (key, {"shadow": slot["shadow"], "buffers": self._copied_buffers(key)})
            yield
        finally:
            while token in self.entered:  # half of a model must not stay averaged: an interrupt waits for the rest
                try:
                    self._uncover(token, key)
                except KeyboardInterrupt as error:
                    interrupt = error
            if interrupt is not None:
                raise interrupt

    def _keep(self, key: str, slot: Any) -> None:
        """Copy what is about to be covered for the first time."""
        self._models.refresh_params()
        live, places = self._models.params[key], self._models.param_places(key)
        self._params |= {places[n]: live[n].clone() for n in slot["shadow"] if places[n] not in self._params}
        saved = zip(self._models.buffer_places(key).values(), self._models.saved_buffers(key), strict=True)
        self._buffers |= {place: buffer for place, buffer in saved if place not in self._buffers}

    def _copied_buffers(self, key: str) -> dict[str, Tensor]:
        """Return copies of the buffers of a model, by name."""
        names = self._models.buffer_places(key)
        return {name: saved[-1] for name, saved in zip(names, self._models.saved_buffers(key), strict=True)}

    def _uncover(self, token: object, key: str) -> None:
        """Write the raw values back, then what is still shown; done twice it does no more than done once."""
        here = self._places(key)
        self._write_raw(key)
        left = [(at, slot, self._places(at)) for each, (at, slot) in self.entered.items() if each is not token]
        for at, slot, places in left:
            if places & here:
                self._write(at, slot["shadow"], slot["buffers"])
        covered = set[Place]().union(*(places for _, _, places in left))
        self._params = {place: value for place, value in self._params.items() if place in covered}
        self._buffers = {place: value for place, value in self._buffers.items() if place in covered}
        del self.entered[token]

    def _write_raw(self, key: str) -> None:
        """Write the raw values back, buffers that a forward has replaced too, wherever the model has moved to."""
        places = self._models.buffer_places(key).values()
        saved = [self._buffers[place] for place in places if place in self._buffers]
        if not (moved := self._has_moved(key)):
            self._models.restore_buffers(saved)
        self._write(key, self._raw_params(key), self._raw_buffers(key) if moved else {})

    def _has_moved(self, key: str) -> bool:
        """Tell whether the model has been cast or moved since; its buffers are then others for good."""
        live, places = self._models.live[key], self._models.param_places(key)
        kept = [(leaf, self._params[places[name]]) for name, leaf in live.items() if places[name] in self._params]
        return any((leaf.device, leaf.dtype) != (raw.device, raw.dtype) for leaf, raw in kept)

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
        self._models.forget_gathered()
        _forget_computed()

    def raw(self, state: TrainState) -> TrainState:
        """Return the state as it is without anything shown: what a checkpoint taken inside must hold."""
        if not self.entered:
            return state
        params = {key: held | _like(held, self._raw_params(key)) for key, held in state.params.items()}
        buffers = {key: held | _like(held, self._raw_buffers(key)) for key, held in state.buffers.items()}
        return state.replace(params=params, buffers=buffers)


def _like(held: Mapping[str, Tensor], raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return raw values on the devices and in the dtypes that the model has now."""
    return {name: value.to(held[name].device, held[name].dtype) for name, value in raw.items()}


def _forget_computed() -> None:
    """Drop what was computed from weights that are gone: casts that autocast keeps, and cached parametrizations."""
    torch.clear_autocast_cache()
    parametrize._cache.clear()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - `cached()` has no other way in


class Swap(ContextDecorator):
    """A context that may be entered again, also inside itself, and may decorate a function.

    >>> from contextlib import nullcontext
    >>> swap = Swap(nullcontext)
    >>> with swap, swap: pass
    """

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        """Keep what makes a context; it is asked at each entering."""
        self._make = make
        self._inside: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        """Enter a context of its own."""
        context = self._make()
        context.__enter__()
        self._inside.append(context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the context that was entered last."""
        self._inside.pop().__exit__(kind, error, trace)
