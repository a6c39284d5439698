"""Two ways to one result, run beside each other: each check raises where they part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from functrain import _tree
from functrain._state import TrainState
from functrain.pure.lanes import stacked, unstacked
from functrain.testing.differences import require_none, unlike
from functrain.testing.events import Event, checked_events
from functrain.testing.training import Training
from functrain.testing.trigger import Trigger
from functrain.testing.twins import Twins

Step = Callable[[TrainState, Any], TrainState]


def check_interpreters(
    training: Training, schedule: Sequence[Event] | None = None, *, tolerance: float | None = None
) -> None:
    """Check that a shell and the pure engine are in the same state after every event of a run.

    Args:
        training: what is run; a model that draws (dropout) draws differently in the two.
        schedule: what happens; by default every micro-batch once.
        tolerance: how far numbers may be apart in the end. By default the two start each step from the same state,
            and may then be apart by nothing with SGD, and by 2 ulp (in float64 1e-12) with Adam and AdamW.

    Raises:
        Disagreement: with every path at which they differ, and after which event.
        ValueError: an unknown event; an optimizer without a pure counterpart, and no ``training.twin``.

    >>> from functrain import Accumulate, SkipNonFinite
    >>> training = Training(
    ...     model=lambda: torch.nn.Linear(2, 1),
    ...     loss_fn=lambda model, x: model(x).square().mean(),
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     batches=[torch.ones(3, 2)],
    ...     hooks=[Accumulate(every=2), SkipNonFinite()],
    ... )
    >>> check_interpreters(training, ["fine", "nan", "flush", "save", "fine", "restore", "fine"])
    """
    schedule = training.schedule() if schedule is None else checked_events(schedule)
    twins = Twins(training, Trigger() if "drop" in schedule else None)
    for place, event in enumerate(schedule):
        twins.happen(event, place)
        near = twins.tolerance if tolerance is None else tolerance
        require_none(f"shell and pure engine, after {_at(place, event)},", twins.differences(near))
        if tolerance is None and near:
            twins.align()


def _at(place: int, event: str) -> str:
    return f"{event!r} at place {place}"


def check_compiled(
    step: Step, state: TrainState, batches: Sequence[Any], *, backend: Any = "eager", tolerance: float = 0.0
) -> None:
    """Check that a compiled step is one graph over all batches and gives what the eager step gives.

    Args:
        step: of ``pure.train_step``.
        state: to start from.
        batches: of one structure and one set of shapes.
        backend: of ``torch.compile``; "inductor" needs a tolerance.
        tolerance: relative and absolute.

    Raises:
        Disagreement: with every path at which they differ, or with the number of graphs.
        torch._dynamo.exc.Unsupported: a step that cannot be one graph; says where it breaks.

    >>> def step(state, batch):
    ...     return state.replace(loss=state.loss + batch)
    >>> check_compiled(step, TrainState(loss=torch.zeros(())), [torch.ones(()), torch.ones(()) * 3])
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    counter: Any = CompileCounterWithBackend(backend)
    compiled = torch.compile(_own(step), fullgraph=True, dynamic=False, backend=counter)
    eager = traced = state
    for place, batch in enumerate(batches):
        eager, traced = step(eager, batch), compiled(traced, batch)
        require_none(f"eager and compiled step, after batch {place},", unlike(eager, traced, "state", tolerance))
        graphs = unlike(counter.frame_count, 1, "graphs")
        require_none(f"what was compiled and one graph, after batch {place},", graphs)


def _own(step: Step) -> Step:
    """Return the step under a code object of its own: torch counts by code object how often it has recompiled."""

    def one_step(state: TrainState, batch: Any) -> TrainState:
        return step(state, batch)

    return FunctionType(one_step.__code__.replace(), globals(), closure=one_step.__closure__)


def check_lanes(
    step: Step, states: Sequence[TrainState], batches: Sequence[Any], *, tolerance: float | None = None
) -> None:
    """Check that each lane of a vmapped run equals the run of that lane alone: decisions and counters exactly.

    Args:
        step: of ``pure.train_step``.
        states: one per lane, of one structure.
        batches: which every lane sees.
        tolerance: of numbers; by default 1e-12 where the parameters are float64, else 1e-5.

    Raises:
        Disagreement: with the lane, and every path at which it differs.

    >>> from functrain import ClipNorm, pure
    >>> init, step, _ = pure.train_step(lambda p, b, x: (p["w"] - x) ** 2, pure.sgd(0.1), ClipNorm(max_norm=1.0))
    >>> check_lanes(step, [init({"w": torch.tensor(w)}) for w in (0.0, 5.0)], [torch.ones(())] * 3)
    """
    near = _lane_tolerance(states[0]) if tolerance is None else tolerance
    together, alone = stacked(states), list(states)
    run: Any = torch.func.vmap(step, in_dims=(0, None))
    for place, batch in enumerate(batches):
        together, alone = run(together, batch), [step(each, batch) for each in alone]
        for lane, each in enumerate(alone):
            lines = unlike(unstacked(together, lane), each, "state", near)
            require_none(f"lane {lane} and its run alone, after batch {place},", lines)


def _lane_tolerance(state: TrainState) -> float:
    doubles = all(leaf.dtype in (torch.float64, torch.complex128) for leaf in _tree.leaves(state.params))
    return 1e-12 if doubles else 1e-5
