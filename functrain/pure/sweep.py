"""Many runs at once: hyper-parameters and seeds as the lanes of one vmapped, compiled step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from functrain._state import TrainState
from functrain.pure.by_kind import ByKind
from functrain.pure.dials import SEED, dialled
from functrain.pure.lanes import Seen, chunked, flushed, joined, watched
from functrain.pure.over import Lane, lanes_of
from functrain.pure.table import SweepTable
from functrain.pure.tally import tabulated
from functrain.pure.team import Team
from functrain.shell.progress import progress as progress_of


def sweep(  # noqa: PLR0913 - what a loop over runs would be written with
    init: Callable[..., TrainState],
    step: Callable[[TrainState, Any], TrainState],
    *,
    over: Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]],
    batches: Iterable[Any],
    params: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    epochs: int = 1,
    flush: Callable[[TrainState], TrainState] | None = None,
    max_lanes: int | None = None,
    progress: bool = True,
    compile: bool | Mapping[str, Any] = True,  # noqa: A002 - named after what it does
) -> SweepTable:
    """Train many runs at once on the same batches, each with other numbers, and return a table of how they fared.

    Lane *i* is the run of lane *i* alone: the same decisions and counters, numbers up to rounding. A lane dies when its
    weights or the loss of an executed step are no longer finite, or when it has skipped more than a hook allows; it
    then stands still, is marked, and disturbs nobody.

    Where ``torch.distributed`` is initialised, all ranks must call it, with the same arguments: each trains its part of
    the lanes, and every rank returns the whole table. The first one shows the bar.

    Args:
        init: what :func:`train_step` returned, together with ``params``; or any function that gives the first state,
            ``init(seed=...)`` if seeds are swept: ``partial(init, params)``, or, for weights that depend on the seed,
            ``lambda seed: init(weights(seed), seed=seed)``.
        step: what :func:`train_step` returned.
        over: values by key, all combined with all; or a list with a dict per lane, such as :func:`zipped` returns.
            Keys: "seed"; "lr" and the other numbers of the optimizer (of several, "opt.KEY.lr"); any number that a
            hook keeps in its slot, as "hooks.clip.max_norm".
        batches: read once per epoch; every lane sees each batch.
        params: what every lane starts from, for an ``init`` that needs it.
        buffers: the same.
        epochs: passes over the batches.
        flush: what :func:`train_step` returned, to close a partial window at the end of each epoch.
        max_lanes: lanes that run at once, in each process. More lanes run in several parts, which bounds the memory of
            a step.
        progress: show a bar with the count of living lanes.
        compile: compile the step, or how: ``{"backend": ..., "mode": ..., "options": ...}``, as in :func:`compiled`.
            Compiling takes some ten seconds: a short sweep of a small model is faster without.

    Raises:
        KeyError: an unknown key; lists what can be swept.
        TypeError: an ``init`` that needs parameters; values that are no series, or of the wrong kind.
        ValueError: no lanes, no batches, NaN, a value that its hook refuses; ranks with other arguments or batches.
        RuntimeError: the sweep has failed on another rank; says on which, and how.

    >>> from functrain import ClipNorm, pure
    >>> init, step, _ = pure.train_step(lambda p, b, x: (p["w"] - x) ** 2, pure.sgd(0.1), ClipNorm(max_norm=9.0))
    >>> over = {"lr": [0.1, 0.5], "hooks.clip.max_norm": [1.0, 9.0]}
    >>> start = {"w": torch.zeros(())}
    >>> table = sweep(init, step, over=over, batches=[torch.ones(())] * 3, params=start, progress=False, compile=False)
    >>> table.best("loss")["lr"], table.state(3).params["main"]["w"]
    (0.5, tensor(1.))

    See also: :func:`grid`, :func:`zipped`, :class:`SweepTable`, :func:`check`.
    """
    begin, team = init if params is None else partial(init, params, buffers), Team()
    lanes = team.agreed(lambda: lanes_of(over))
    mine, size = team.agreed(lambda: team.dealt(lanes, max_lanes))
    parts = team.agreed(lambda: chunked(_first_states(begin, step, mine), size))
    given = {"lanes": len(lanes), "over": dict(enumerate(lanes)), "epochs": epochs, "max_lanes": max_lanes}
    first = partial(_first_states, begin, step, lanes[:1])
    team.refuse_different(lambda: first()[0], _pipeline_of(step), given | {"flush": flush is not None})
    run = _Run(parts, len(mine), step, flush, compile, team)
    team.agreed(lambda: run.train(batches, epochs, progress=progress and team.rank == 0))
    team.refuse_other_batches()
    return tabulated(lanes, *team.gathered(joined(run.parts, len(mine)), run.seen(), len(lanes)))


def _pipeline_of(step: Any) -> Any:
    """Return the hooks of a step that :func:`train_step` has made."""
    return getattr(getattr(step, "__self__", None), "pipeline", None)


def _first_states(init: Callable[..., TrainState], step: Any, lanes: list[Lane]) -> list[TrainState]:
    """Return the state that each lane starts from; lanes of one seed share what ``init`` gave."""
    pipeline = _pipeline_of(step)
    begun: dict[Any, TrainState] = {}
    for lane in lanes:
        if (seed := lane.get(SEED)) not in begun:
            begun[seed] = _begun(init, {} if seed is None else {SEED: seed})
    return [dialled(begun[lane.get(SEED)], lane, pipeline) for lane in lanes]


def _begun(init: Callable[..., TrainState], seed: dict[str, Any]) -> TrainState:
    """Return what ``init`` gives, with a seed of 0 where it asks for one and none is swept."""
    signature = inspect.signature(init)
    for given in (seed, {SEED: 0}):
        try:
            signature.bind(**given)
        except TypeError:
            continue
        return init(**given)
    msg = (
        f"init{signature} cannot be called as init(seed=...): give sweep(params=...) what it starts from, "
        "or an init of your own, lambda seed: init(weights(seed), seed=seed)"
    )
    raise TypeError(msg)


class _Run:
    """The lanes of one sweep, in one or several parts, on their way through the batches."""

    def __init__(self, parts: list[TrainState], count: int, step: Any, flush: Any, compiled: Any, team: Team) -> None:
        """Make one step of all lanes out of the step of one."""
        self.parts, self.count, self.team = parts, count, team
        self.step = _compiled(torch.func.vmap(watched(step), in_dims=(0, 0, None)), compiled)
        self.flush = None if flush is None else torch.func.vmap(flushed(flush))
        self.dead = [torch.zeros_like(part.rng, dtype=torch.bool) for part in parts]
        self.history: list[list[Seen]] = [[] for _ in parts]

    def train(self, batches: Iterable[Any], epochs: int, *, progress: bool) -> None:
        """Take every part through each batch before the next one: the batches are read once."""
        if epochs > 1 and isinstance(batches, Iterator):
            msg = f"batches can be read once only, and epochs={epochs}; give a list or a loader"
            raise ValueError(msg)
        total = len(cast("Any", batches)) * epochs if hasattr(batches, "__len__") else None
        with progress_of(total, self._shown, hidden=not progress) as bar:
            for _ in range(epochs):
                for batch in batches:
                    self._present(batch)
                    bar.advance()
                self._close()
        if not self.history[0]:
            msg = "batches held no batch; an iterator that was read before is empty"
            raise ValueError(msg)

    def _present(self, batch: Any) -> None:
        """Run one micro-batch in every lane."""
        self.team.present(batch)
        for place, part in enumerate(self.parts):
            self.parts[place], seen = self.step(part, self.dead[place], batch)
            self.dead[place] = seen.dead
            self.history[place].append(seen)

    def _close(self) -> None:
        """End the epoch in every lane."""
        if self.flush is not None:
            for place, part in enumerate(self.parts):
                self.parts[place], self.dead[place] = self.flush(part, self.dead[place])

    def _shown(self) -> dict[str, Any]:
        """Return the count of dead lanes, which reads a device."""
        return {"dead": int(self._dead().sum())}

    def _dead(self) -> Tensor:
        return torch.cat(self.dead)[: self.count]

    def seen(self) -> Seen:
        """Return what was seen, lanes by micro-batches, on the CPU; who died in the last flush is dead, too."""
        loss, counts = (_by_lane(self.history, name)[: self.count] for name in ("loss", "counts"))
        return Seen(loss.double(), counts, self._dead().cpu())


def _compiled(step: Callable[..., Any], options: bool | Mapping[str, Any]) -> Callable[..., Any]:
    """Return a step of all lanes compiled as one graph, if so wished."""
    if options is False:
        return step
    return ByKind(step, "pure.sweep", {} if options is True else options)


def _by_lane(history: list[list[Seen]], name: str) -> Tensor:
    """Return one of the things seen, one row per lane."""
    return torch.cat([torch.stack([getattr(seen, name) for seen in part], dim=1) for part in history]).cpu()
