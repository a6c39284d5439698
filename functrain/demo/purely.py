"""The demo's training by the pure engine: the same hooks and the same batches, without a module in the loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.optim import AdamW

import functrain
from functrain import TrainState, pure
from functrain.demo.poison import Poisoned
from functrain.demo.recipe import RATE, loss_of, warm_up
from functrain.demo.saving import UNSAVED, Saving
from functrain.pure.numbers import plain
from functrain.shell.fit import with_last
from functrain.shell.progress import progress as progress_of

Validate = Callable[[nn.Module], dict[str, float]]


class PureRun:
    """A step that is a function, and the state that it has come to."""

    def __init__(self, model: nn.Module, pipeline: functrain.Pipeline, steps: int, seed: int) -> None:
        """Take the weights of a model, which stays as it is until :meth:`to_shell`."""
        self.model, self.pipeline = model, pipeline
        loss_fn = pure.functional(model, loss_fn=loss_of)
        self.functions = pure.train_step(loss_fn, pure.adamw(warm_up(steps)), pipeline)
        self.state = self.functions.init(pure.parameters(model), pure.buffers(model), seed)

    def train(
        self, batches: Poisoned, epochs: int, validate: Validate, saving: Saving = UNSAVED, *, progress: bool
    ) -> functrain.History:
        """Train, and record what :func:`functrain.fit` would have recorded; save at the end of each epoch."""
        history, first = functrain.History(), self._resumed(batches, saving)
        with progress_of(len(batches) * (epochs - first), hidden=not progress) as bar:
            for epoch in range(first, epochs):
                for seen in self._epoch(batches, epoch):
                    history.record(seen)
                    bar.advance()
                closed = self._of_epoch(epoch)
                history.record_validation(closed.replace(clock=plain(closed.clock)), validate(self.averaged()))
                if saving.checkpoint is not None:
                    saving.checkpoint.save(self.state, pipeline=self.pipeline, data=batches)
        return history

    def _resumed(self, batches: Poisoned, saving: Saving) -> int:
        """Go on from a checkpoint, if there is one to go on from; return how many epochs lie behind."""
        if saving.resume is not None:
            stored = functrain.load(saving.resume)
            self.state = stored.into(self.state, self.pipeline)
            stored.restore_data(batches)
        return int(self.state.clock.epoch)

    def _epoch(self, batches: Poisoned, epoch: int) -> Iterator[TrainState]:
        """Yield the state after each micro-batch; after the last, when its window has been closed."""
        for batch, last in with_last(batches):
            self.state = self.functions.step(self.state, batch)
            if last:
                self.state = self.functions.flush(self.state)
            yield self._of_epoch(epoch)

    def _of_epoch(self, epoch: int) -> TrainState:
        """Return the state with the number of the epoch that is recorded; a flush has ended it already."""
        return self.state.replace(clock=self.state.clock.replace(epoch=epoch))

    def averaged(self) -> nn.Module:
        """Return a copy of the model with the averaged weights, or, before there are any, with its own."""
        slot = self.state.hooks["ema"]
        tensors = _averaged(slot) if slot["n_averaged"] > 0 else _own(self.state)
        module = copy.deepcopy(self.model)
        module.load_state_dict(tensors)
        return module

    def to_shell(self) -> functrain.Shell:
        """Return a shell that stands where this run stands; the model holds its weights from here on."""
        optimizer = AdamW(self.model.parameters(), lr=RATE)
        return pure.to_shell(self.state, self.model, optimizer, hooks=self.pipeline)


def _averaged(slot: Any) -> dict[str, Any]:
    return {**slot["shadow"], **slot["buffers"]}


def _own(state: TrainState) -> dict[str, Any]:
    return {**state.params["main"], **state.buffers["main"]}
