"""The state of a shell on its way through the stages, and the way back when something raises."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any

import torch

from functrain._fold import Pipeline
from functrain._select import Flag, negate
from functrain._stage import GATED_STAGES, Stage
from functrain._state import TrainState, nothing
from functrain._tree import FrozenMap
from functrain._wrapper import innermost
from functrain.shell.apply import Applier
from functrain.shell.distributed import Distributed
from functrain.shell.grad_mode import grad_mode


class Phase(Enum):
    """How far a micro-batch has come: what an exception leaves behind depends on it."""

    FORWARD = "before the backward; the state is as before the batch"
    BACKWARD = "after the backward had begun and before the optimizers ran; the open window was emptied"
    STEPPED = "after the optimizers ran; the step counts"


class Driver:
    """Fires stages, writes what hooks changed, and recovers."""

    def __init__(
        self, pipeline: Pipeline, applier: Applier, state: TrainState, distributed: Distributed | None = None
    ) -> None:
        """Start from a first state; ``pipeline`` is what runs, possibly with checks around its members."""
        self.distributed = distributed
        self._scan = pipeline.scan if distributed is None else distributed.agreement.scan
        self.pipeline, self.applier, self.state = pipeline, applier, state
        self._claims = pipeline.claims
        self.phase = Phase.FORWARD
        self.accumulate = innermost(pipeline.member("accumulate"))
        self.precision = innermost(pipeline.member("precision"))
        self._device = next((leaf.device for held in state.params.values() for leaf in held.values()), None)
        self.may_drop = pipeline.may_drop
        self.pristine: FrozenMap[Any] = state.vetoes
        self.nothing = nothing()
        self.unpublished: FrozenMap[Any] = state.metrics
        self.waiting = state.stepped
        self.scales = bool(state.scaler)
        self.autocasting = False

    def fire(self, stage: Stage, will_skip: Flag = False) -> Flag:  # noqa: FBT002 - the name of the contract
        """Run the fold of a stage on the state and return its verdict; without claimants it costs nothing."""
        if not self._claims[stage]:
            return negate(will_skip)
        proceed: Flag = True
        # Hooks stay out of autocast, and out of the graph except where the loss is threaded.
        with self._surroundings(recording=stage in WITH_GRAPH):
            for self.state, proceed in self._scan(self.state, stage, will_skip):  # noqa: B007, B020 - kept on errors
                pass
        self.state = self.applier.write(self.state)
        return proceed if stage in GATED_STAGES else True

    def fire_after_step(self, will_skip: bool) -> None:
        """Fire AFTER_OPTIMIZER_STEP; a step that has been executed is shown to every hook, even if one raises."""
        if self.phase is not Phase.STEPPED:
            self.fire(Stage.AFTER_OPTIMIZER_STEP, will_skip)
            return
        failures: list[BaseException] = []
        with grad_mode(enabled=False):
            for member in self._claims[Stage.AFTER_OPTIMIZER_STEP]:
                try:
                    self.state, _ = self.pipeline.call(member, self.state, Stage.AFTER_OPTIMIZER_STEP, will_skip)
                except BaseException as error:  # noqa: BLE001 - raised again after the others have been called
                    failures.append(error)
        self.state = self.applier.write(self.state)
        if failures:
            for other in failures[1:]:
                failures[0].add_note(f"then {other!r} {', '.join(other.__notes__)}")
            raise failures[0]

    def read_hyper(self) -> None:
        """Let the state show the numbers that the optimizers hold now, after somebody has loaded others into them."""
        self.state = self.state.replace(hyper=self.applier.optimizers.hyper())

    def _surroundings(self, *, recording: bool) -> AbstractContextManager[Any]:
        """Return the context in which hooks run: without autocast, and with or without a graph."""
        return self._outside_autocast(recording) if self.autocasting else grad_mode(enabled=recording)

    @contextmanager
    def _outside_autocast(self, recording: bool) -> Generator[None]:
        with grad_mode(enabled=recording), torch.autocast(self.device_type(), enabled=False):
            yield

    def device_type(self) -> str:
        """Return the type of the device that the models are on."""
        return self._device.type if self._device else "cpu"

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast of the pipeline's precision."""
        dtype = self.state.autocast
        return torch.autocast(self.device_type(), dtype, enabled=dtype is not None)

    def discard_window(self) -> None:
        """Empty the open window: gradients, numbers, and what hooks keep of it."""
        if self.distributed is not None:
            self.distributed.forget()
        state = self._with_reset_slots(self.applier.discard_gradients(self.state))
        self.state = state.replace(window=state.window.emptied())

    def _with_reset_slots(self, state: TrainState) -> TrainState:
        """Return the state in which no hook remembers anything of a window."""
        slots = {each.name: each.reset(state.hooks[each.name]) for each in self.pipeline}
        return state.replace(hooks=state.hooks | slots)

    def enter(self, phase: Phase) -> None:
        """Note how far the micro-batch has come."""
        self.phase = phase

    def recover(self, before: TrainState, error: BaseException) -> None:
        """Return to a state that training can go on from, and say in the error which one."""
        error.add_note(f"functrain: in batch {before.clock.batch}, {self.phase.value}")
        if self.distributed is not None:
            self.distributed.ranks.tell(error)
        if self.phase is Phase.STEPPED:  # hooks that were not reached have not closed their window
            self.state = self._with_reset_slots(self.applier.write(self.state))
            return
        self.state = self.applier.read_gradients(self.applier.refreshed(before))
        self.applier.show_scale(self.state)
        if self.phase is Phase.BACKWARD:
            self.discard_window()

    def window_is_open(self) -> bool:
        """Tell whether micro-batches wait for a boundary."""
        return self.accumulate is not None and bool(self.state.hooks[self.accumulate.name]["position"])


WITH_GRAPH = frozenset({Stage.AFTER_LOSS, Stage.BEFORE_BACKWARD, Stage.DO_BACKWARD})
"""The stages at which ``state.loss`` carries a graph that hooks may extend."""
