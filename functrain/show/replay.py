"""What would have happened: a recorded run once more, through other hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functrain.pure.engine import TrainStep
from functrain.shell.shell import Shell
from functrain.shell.snapshot import copied, random_states, set_random_states
from functrain.show.comparison import Replay, Step, distance
from functrain.show.program import program
from functrain.show.rerun import Loss, PureRerun, ShellRerun
from functrain.show.timeline import Trace
from functrain.show.tracing import TracedPipeline, trace


def replay(
    recorded: Trace,
    hooks: Any,
    make: Callable[[TracedPipeline], Any],
    loss_fn: Loss | None = None,
    *,
    start: int | None = None,
) -> Replay:
    """Run recorded micro-batches again from a kept snapshot, with other hooks and all else as it was.

    All else is weights, buffers, optimizers, schedulers, counters, data and the random numbers of each micro-batch:
    whatever comes out different comes from the hooks. It runs in the interpreter that recorded, and is bitwise the
    recorded run if the hooks are the same. A hook that is equal to one of the recorded pipeline goes on from its slot,
    any other starts anew on the weights of the snapshot; an open window is emptied if accumulation or precision change.
    Epochs end where they ended. Stages that only ``fit`` fires, and validations, are not told again; a skip limit is
    noted, not raised.

    Args:
        recorded: the ``trace`` of a pipeline that was traced with a budget.
        hooks: the other hooks: one, a pipeline, a list; or traced with a budget of their own to keep the states, too.
        make: ``make(hooks)`` builds the interpreter as the recorded run had it: ``Shell(model, optimizer, hooks)`` or
            ``pure.train_step(loss_fn, optimizer, hooks)``; weights do not matter, they are overwritten.
        loss_fn: ``loss_fn(model, batch)`` of a shell, as for :func:`functrain.fit`; a pure step has its own.
        start: the micro-batch to start from; by default the first that is kept.

    Raises:
        LookupError: no snapshot to start from; says which there are.
        TypeError: ``make`` returned the other interpreter, or none; a shell without a loss.
        ValueError: ``make`` built another model or optimizer; a shell that was given no data in ``batch()``.

    >>> import torch
    >>> from functrain import ClipNorm, Shell, fit, show
    >>> def make(hooks):
    ...     model = torch.nn.Linear(1, 1, bias=False)
    ...     torch.nn.init.ones_(model.weight)
    ...     return Shell(model, torch.optim.SGD(model.parameters(), lr=0.25), hooks)
    >>> def loss_fn(model, batch):
    ...     return model(batch).square().mean()
    >>> traced = show.trace(ClipNorm(max_norm=1.0), budget=1_000_000)
    >>> _ = fit(make(traced), [torch.full((1, 1), 4.0)] * 3, loss_fn, epochs=1, progress=False)
    >>> show.replay(traced.trace, ClipNorm(max_norm=2.0), make, loss_fn, start=1)
    recorded
    batch  1  2
    -----  -  -
    clip   x  x
    <BLANKLINE>
    replayed
    batch  1  2
    -----  -  -
    clip   x  x
    <BLANKLINE>
    batch by batch
    batch  recorded  replayed  recorded loss  replayed loss  distance
    -----  --------  --------  -------------  -------------  --------
    1      stepped   stepped   9              9              0
    2      stepped   stepped   4              1              0.25
    the two part in batch 1; the largest distance is 0.25
    """
    acts = program(recorded, start)
    again = hooks if isinstance(hooks, TracedPipeline) else trace(hooks)
    random = random_states()
    try:
        run = _rerun(recorded, again, make(again), acts[0].snapshot, loss_fn)
        steps: list[Step] = []
        for act in acts:
            if act.snapshot is None:
                run.flush()
                continue
            apart = distance(act.snapshot.state.params, run.state.params)
            run.present(act)
            steps.append(Step(act.column, again.trace.latest, apart))
    finally:
        set_random_states(random)
    return Replay(recorded, again.trace, steps, copied(run.state), run.limits)


def _rerun(recorded: Trace, again: TracedPipeline, made: Any, start: Any, loss_fn: Any) -> ShellRerun | PureRerun:
    """Return what was made, at the snapshot.

    Raises:
        TypeError: it is no interpreter.
    """
    if isinstance(made, Shell):
        return ShellRerun(made, again, recorded.pipeline, start, loss_fn)
    if isinstance(made, TrainStep):
        return PureRerun(made, again, recorded.pipeline, start)
    msg = f"make(hooks) must return a functrain.Shell or functrain.pure.train_step(...), got {type(made).__name__}"
    raise TypeError(msg)
