"""L7: a tracer sees the whole of a hook, and one graph serves many steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from functrain import Hook, Outcome, Stage, TrainState
from functrain.testing.breach import Breach, require_same_outcome
from functrain.testing.close import require_close
from functrain.testing.forms import cloned, in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene, outcome_of

STEPS = 2
Call = Callable[[TrainState, Tensor], tuple[Any, ...]]


def check_traceable(scene: Scene, backend: str = "eager") -> None:
    """Check every claimed stage but SETUP: no graph break, one graph, and the result of the untraced call."""
    for stage in Stage:
        if stage in scene.hook.stages and stage is not Stage.SETUP:
            _check_stage(scene.hook, stage, in_form(scene.state, "tensor"), backend)


def _check_stage(hook: Hook, stage: Stage, state: TrainState, backend: str) -> None:
    """Follow a few steps, vetoed and not; each starts from the state that the one before has left."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter: Any = CompileCounterWithBackend(backend)
    compiled: Call = torch.compile(_own_function(hook, stage), fullgraph=True, dynamic=False, backend=counter)
    graphs = 0
    for _ in range(STEPS):
        for will_skip in (torch.tensor(False), torch.tensor(True)):
            expected = outcome_of(hook, cloned(state), stage, will_skip, "tensor")
            found = _traced(compiled, cloned(state), will_skip, stage)
            compare = require_same_outcome if backend == "eager" else require_close
            compare(expected, found, f"traced and untraced differ at {stage.name}")
            graphs = graphs or counter.frame_count  # a backend may start over within the first call
            if counter.frame_count > graphs:
                raise Breach(f"compiled again at {stage.name}: not one graph for all steps", "", 1, 2)
            _check_reads(counter.graphs, stage)
        after: TrainState = expected.state
        state = cloned(in_form(after.replace(clock=after.clock.replace(batch=after.clock.batch + 1)), "tensor"))


def _check_reads(graphs: list[Any], stage: Stage) -> None:
    """Check that no value is read from a device, which a tracer may let pass."""
    for node in (node for module in graphs for node in module.graph.nodes):
        if node.op == "call_method" and node.target in ("item", "tolist"):
            raise Breach(f"reads a value from the device at {stage.name}; decide with functrain.select", str(node))


def _own_function(hook: Hook, stage: Stage) -> Call:
    """Return a function with a code object of its own: torch counts by code object how often it has recompiled."""

    def call(state: TrainState, will_skip: Tensor) -> tuple[Any, ...]:
        return tuple(hook(state, stage, will_skip))

    return FunctionType(call.__code__.replace(), globals(), closure=call.__closure__)


def _traced(compiled: Call, state: TrainState, will_skip: Tensor, stage: Stage) -> Outcome:
    try:
        with torch.no_grad():
            return Outcome(*(in_form(part, "tensor") for part in compiled(state, will_skip)))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise Breach(f"cannot be traced at {stage.name}: {reason}; decide with functrain.select") from error


STATEMENT = "the same under compile(fullgraph=True), one graph over many steps"
TRACEABLE = Law("L7 traceable", STATEMENT, check_traceable, cost=40)
COMPILED = Law("L7 compiled", f"{STATEMENT}, by Inductor", partial(check_traceable, backend="inductor"), cost=100)
