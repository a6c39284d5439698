"""Applying a state to real objects: the only place that writes into modules and steps optimizers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from functrain import _scaler
from functrain._select import beside
from functrain._state import EMPTY, TrainState
from functrain._tree import FrozenMap
from functrain.shell.grad_mode import grad_mode
from functrain.shell.models import Models
from functrain.shell.optimizers import Optimizers


class Applier:
    """Carries what the fold decided over to modules, optimizers, schedulers and the user's loss scaler."""

    def __init__(self, models: Models, optimizers: Optimizers, scaler: torch.amp.GradScaler | None) -> None:
        """Keep the real objects; make sure the user's scaler has its tensors."""
        self.models, self.optimizers, self.scaler = models, optimizers, scaler
        self._grads: FrozenMap[Any] = models.gradients()
        self._none: FrozenMap[Any] = FrozenMap(dict.fromkeys(models.modules, EMPTY))
        self._cases: dict[tuple[str, ...], FrozenMap[Any]] = {}
        if scaler is not None:
            # GradScaler makes its tensors at the first scale(); update(new_scale) needs them.
            device = models.places[0][2].device if models.places else torch.device("cpu")
            scaler.scale(torch.ones((), device=device))

    def write(self, state: TrainState) -> TrainState:
        """Write what hooks changed, and return the state on the live tensors again; nothing changed costs nothing."""
        if state.grads is not self._grads:
            self._write_gradients(state.grads)
        if state.params is not self.models.params and state.params is not self.models.live:
            state = self._write_params(state)
        if state.buffers is not self.models.buffers:
            state = self._write_buffers(state)
        return state

    def read_gradients(self, state: TrainState) -> TrainState:
        """Return the state with the gradients that the parameters hold now."""
        self._grads = self.models.gradients()
        return state.replace(grads=self._grads)

    def _write_gradients(self, grads: FrozenMap[Any]) -> None:
        """Give each parameter the gradient that the state has for it."""
        for key, name, leaf in self.models.places:
            grad = grads[key].get(name)
            if grad is not leaf.grad:
                leaf.grad = grad
        self._grads = grads

    def _write_params(self, state: TrainState) -> TrainState:
        """Copy changed parameters into the module's own storage."""
        for key, held in self.models.params.items():
            for name, leaf in held.items():
                new = state.params[key][name]
                if new is not leaf and new is not self.models.live[key][name]:
                    self.models.write(key, name, new)
        self.models.forget_gathered()
        return state.replace(params=self.models.params)

    def _write_buffers(self, state: TrainState) -> TrainState:
        """Copy changed buffers into the module's own storage."""
        with torch.no_grad():
            for key, held in self.models.buffers.items():
                for name, leaf in held.items():
                    if state.buffers[key][name] is not leaf:
                        leaf.copy_(state.buffers[key][name])
        return state.replace(buffers=self.models.buffers)

    def refreshed(self, state: TrainState) -> TrainState:
        """Return the state on the tensors that the modules hold now, also after a cast."""
        self.models.refresh_params()
        state = self.with_buffers(state)
        return state if state.params is self.models.params else state.replace(params=self.models.params)

    def with_buffers(self, state: TrainState) -> TrainState:
        """Return the state on the buffers that the modules hold now: a forward may have replaced some."""
        self.models.refresh_buffers()
        return state if state.buffers is self.models.buffers else state.replace(buffers=self.models.buffers)

    def zero_grad(self, state: TrainState) -> TrainState:
        """Clear the gradients of a window that is about to open, and what it had counted."""
        self._grads = self._none if self.optimizers.zero_grad() else self.models.gradients()
        return state.replace(grads=self._grads, window=state.window.cleared())

    def discard_gradients(self, state: TrainState) -> TrainState:
        """Clear every gradient, also of parameters that were frozen meanwhile."""
        self.models.clear_gradients()
        return self.read_gradients(state)

    def backward(self, state: TrainState) -> None:
        """Run the one backward of a micro-batch, on the loss as the window and the scaler want it."""
        with grad_mode(enabled=True):  # the caller may have switched gradients off around the update
            loss = _as_the_window_wants(state)
            if state.scaler:
                loss = loss * state.scaler["scale"]
        loss.backward()  # pyright: ignore[reportUnknownMemberType] - torch leaves it unannotated

    def after_backward(self, state: TrainState, *, entered: bool) -> TrainState:
        """Return the state with the gradients there are now, counted in the window, and without a graph."""
        self._grads = self.models.gradients()
        raw = state.raw_loss.detach()
        return state.replace(
            grads=self._grads,
            params=self.models.params,
            window=state.window.with_entry() if entered else state.window,
            loss=raw if state.loss is state.raw_loss else state.loss.detach(),
            raw_loss=raw,
        )

    def step(self, state: TrainState, proceed: bool) -> TrainState:
        """Step each optimizer that may, then the schedulers of those that did, and say which stepped.

        Whatever an optimizer or a scheduler raises carries, as ``partial``, the optimizers that had stepped.
        """
        found: FrozenMap[Any] = state.scaler.get("found_inf", EMPTY)
        wanted = [key for key in self.optimizers.by_key if proceed and not found.get(key, False)]
        done: list[str] = []
        try:
            try:
                with self.optimizers.overridden(state.hyper):
                    self._step_each(wanted, done)
            finally:
                self._schedule(done)
        except BaseException as error:
            error.partial = done  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
            raise
        return state.replace(stepped=self._said(tuple(wanted)))

    def _said(self, stepped: tuple[str, ...]) -> FrozenMap[Any]:
        """Return which optimizers stepped, as part of a state; made once for each case."""
        if stepped not in self._cases:
            self._cases[stepped] = FrozenMap({key: key in stepped for key in self.optimizers.by_key})
        return self._cases[stepped]

    def _step_each(self, wanted: list[str], done: list[str]) -> None:
        """Step the optimizers; an error says how far that went."""
        for key in wanted:
            try:
                self.optimizers.by_key[key].step()
            except BaseException as error:
                error.add_note(f"optimizer {key!r} raised; those that had stepped before it: {done}")
                raise
            done.append(key)

    def _schedule(self, done: list[str]) -> None:
        """Advance the schedulers of the optimizers that stepped, all of them even if one raises."""
        scheduled = [key for key in done if self.optimizers.schedulers[key] is not None]
        if scheduled:
            with ExitStack() as stack:
                for key in reversed(scheduled):
                    stack.callback(self.optimizers.step_scheduler, key)

    def settle(self, state: TrainState, rule: Any) -> TrainState:
        """Move the loss scale after a step, and keep the user's scaler in step with it."""
        state = _scaler.settled(state, rule)
        self.show_scale(state)
        return state

    def show_scale(self, state: TrainState) -> None:
        """Tell the user's scaler the scale: through ``update(new_scale)``, which reads no device."""
        if self.scaler is not None and state.scaler:
            self.scaler.update(new_scale=float(state.scaler["scale"]))


def _as_the_window_wants(state: TrainState) -> Tensor:
    """Return the loss times its weight, or over the divisor; by 1 not at all: a window of one is the plain recipe."""
    loss, window = state.loss, state.window
    if window.weighted:
        return loss * beside(window.weight, loss)
    return loss if isinstance(window.divisor, int) and window.divisor == 1 else loss / window.divisor
