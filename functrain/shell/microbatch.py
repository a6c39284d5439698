"""One micro-batch as a transaction: from BEFORE_BATCH to the advanced clock, or back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from functrain import _scaler
from functrain._select import Number
from functrain._stage import Stage
from functrain._state import EMPTY, TrainState
from functrain._tree import freeze
from functrain._verdict import checked_loss
from functrain.shell.boundary import check_limits, finish, reduce_kept, resolve, run_step
from functrain.shell.driver import Driver, Phase
from functrain.shell.snapshot import held
from functrain.shell.weights import weighed_window


class MicroBatch:
    """What ``shell.batch()`` returns: enter it before the forward, leave it after ``shell.update(loss)``."""

    def __init__(self, driver: Driver, batch: Any, last: bool, admit: Callable[[MicroBatch], None]) -> None:
        """Keep what belongs to this micro-batch; ``admit`` is asked when it is entered."""
        self._driver, self._batch, self._last, self._admit = driver, batch, last, admit
        self._autocast: AbstractContextManager[Any] | None = None
        self._buffers: Any = ()
        self.done = False

    @property
    def is_open(self) -> bool:
        """Whether it was entered and not left."""
        return self.is_entered and not self._left

    is_entered = False
    _left = False

    def __enter__(self) -> Self:
        """Fire BEFORE_BATCH, clear gradients unless vetoed, open autocast."""
        if self.is_entered:
            msg = "a batch() was entered twice; call shell.batch() for each micro-batch"
            raise RuntimeError(msg)
        self._admit(self)
        # The shell keeps its last batch: with a way back to the shell, only the garbage collector would free the model.
        del self._admit
        driver = self._driver
        self.is_entered = True
        # Held without gradients, which would otherwise outlive their clearing until the next batch.
        self._before, driver.phase = driver.state.replace(grads=EMPTY), Phase.FORWARD
        try:
            self._open()
        except BaseException as error:
            self._give_up(error)
            raise
        return self

    def _open(self) -> None:
        """Set the state of this micro-batch up."""
        driver = self._driver
        state = driver.applier.refreshed(driver.state)
        driver.state = state.replace(
            loss=driver.nothing,
            raw_loss=driver.nothing,
            vetoes=driver.pristine,
            metrics=driver.unpublished,
            stepped=driver.waiting,
            window=state.window.opened(self._last),
            owners=driver.applier.optimizers.current_owners(),
            hyper=driver.applier.optimizers.hyper(),
            batch=EMPTY if self._batch is None else freeze(self._batch),
        )
        driver.pipeline.notice("batch", driver.state, lambda: held(driver, driver.state))
        proceed = driver.fire(Stage.BEFORE_BATCH)
        if resolve(driver, Stage.BEFORE_BATCH, proceed):
            driver.state = driver.applier.zero_grad(driver.state)
        if driver.may_drop:
            self._buffers = driver.applier.models.saved_buffers()
        if driver.distributed is not None:
            driver.distributed.open(driver.state)
        self._enter_autocast()

    def _enter_autocast(self) -> None:
        """Open autocast for the forward and the loss."""
        if self._driver.state.autocast is not None:
            self._autocast = self._driver.autocast()
            self._autocast.__enter__()
            self._driver.autocasting = True

    def _leave_autocast(self) -> None:
        self._driver.autocasting = False
        opened, self._autocast = self._autocast, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def update(self, loss: Any, weight: Number | None, losses: Mapping[str, Tensor] | None) -> None:
        """Run everything from BEFORE_BACKWARD to the advanced clock.

        Raises:
            RuntimeError: called a second time.
            SkipLimitError: too many skips in a row; everything before it has been done.
        """
        if self.done:
            msg = "shell.update() was called twice in one batch(); open a new batch() for each micro-batch"
            raise RuntimeError(msg)
        self._leave_autocast()
        try:
            self._run(
                checked_loss(loss, "shell.update", Stage.DO_BACKWARD, "Call it with this batch's loss."), weight, losses
            )
        except BaseException as error:
            self._give_up(error)
            raise
        self.done = True
        check_limits(self._driver)

    def _run(self, loss: Tensor, weight: Number | None, losses: Mapping[str, Tensor] | None) -> None:
        """Backward, step, clock."""
        driver = self._driver
        state = driver.applier.with_buffers(driver.state)
        window, seen = weighed_window(driver, weight), driver.pipeline.claimants(Stage.BEFORE_BACKWARD)
        params = state.params if seen else driver.applier.models.live
        driver.state = state.replace(loss=loss, raw_loss=loss, window=window, params=params)
        driver.fire(Stage.BEFORE_BACKWARD)
        self._backward()
        if losses:
            driver.state = driver.state.with_metrics(losses)
        driver.fire(Stage.AFTER_BACKWARD)
        run_step(driver)
        finish(driver, presented=True)
        self._drop_partial()

    def _backward(self) -> None:
        """Fold the loss, then run the one backward unless a hook drops the micro-batch."""
        driver = self._driver
        before = driver.state = driver.state.changed(params=driver.applier.models.live)
        proceed = driver.fire(Stage.DO_BACKWARD)
        enters = resolve(driver, Stage.DO_BACKWARD, proceed)
        if enters:
            self._differentiate()
        else:
            driver.applier.models.restore_buffers(self._buffers)
        if driver.distributed is not None:
            self._close_ranks(before, differentiated=enters)
        driver.state = driver.applier.after_backward(driver.state, entered=enters)

    def _close_ranks(self, before: TrainState, *, differentiated: bool) -> None:
        """End the micro-batch between ranks; a boundary that was dropped reduces what the window holds."""
        driver = self._driver
        if driver.distributed is None:
            return
        driver.distributed.close(differentiated=differentiated)
        if not differentiated:
            driver.state = driver.distributed.agreement.with_slots_before(before, driver.state)
            reduce_kept(driver)

    def _differentiate(self) -> None:
        """Run the backward; gradients kept from a finished window first get the scale of what is added to them."""
        driver = self._driver
        if not driver.state.loss.requires_grad:
            msg = (
                "the loss has no graph: it requires no gradient; was it detached, computed under torch.no_grad(), "
                "or does no parameter of the model require a gradient?"
            )
            raise ValueError(msg)
        driver.phase = Phase.BACKWARD
        if driver.scales and not driver.state.window.entered:
            with torch.no_grad():
                driver.state = driver.applier.write(_scaler.rescaled(driver.state))
        driver.applier.backward(driver.state)

    def _drop_partial(self) -> None:
        """Discard what the epoch leaves of a window under ``partial="drop"``."""
        if self._last and self._driver.window_is_open() and getattr(self._driver.accumulate, "partial", "") == "drop":
            self._driver.discard_window()

    def _give_up(self, error: BaseException) -> None:
        """Close contexts, put buffers back, and recover the state."""
        self._leave_autocast()
        self._left = True
        self.done = True
        driver = self._driver
        if driver.distributed is not None:
            driver.distributed.close(differentiated=driver.phase is not Phase.FORWARD)
        if driver.phase is not Phase.STEPPED:
            driver.applier.models.restore_buffers(self._buffers)
        driver.recover(self._before, error)
        if driver.phase is Phase.STEPPED:
            finish(driver, presented=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close autocast; without an update the micro-batch was dropped, with an exception it never happened."""
        self._leave_autocast()
        self._left = True
        if self.done:
            return
        if error is not None:
            self._give_up(error)
            return
        try:
            self._run_dropped()
        except BaseException as raised:
            self._give_up(raised)
            raise
        self.done = True
        check_limits(self._driver)

    def _run_dropped(self) -> None:
        """Let a micro-batch without an update take its place in the window, and nothing more."""
        driver = self._driver
        driver.applier.models.restore_buffers(self._buffers)
        if driver.distributed is not None:
            driver.distributed.agreement.absent()
            self._close_ranks(driver.state, differentiated=False)
        driver.state = driver.applier.read_gradients(driver.applier.refreshed(driver.state))
        run_step(driver)
        finish(driver, presented=True)
        self._drop_partial()
