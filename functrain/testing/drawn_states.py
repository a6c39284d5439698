"""Drawn states: what a hook may find, before and after it has prepared its slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor

from functrain import UPDATE_STAGES, ClipValue, FrozenMap, Hook, Pipeline, Stage, TrainState, fold
from functrain._wrapper import innermost
from functrain.hooks import LIBRARY
from functrain.testing.checking import check_options, strategy
from functrain.testing.counters import clocks, scalers, windows
from functrain.testing.drawn_tensors import AWKWARD, COMPLEX, ORDINARY, REAL, tensor_of
from functrain.testing.synthetic import Synthetic
from functrain.testing.trees import gradients, owners, param_trees

UPDATES = tuple(stage for stage in Stage if stage in UPDATE_STAGES)
NORMS = st.none() | st.sampled_from([0.0, 0.5, 3.0, float("inf")])


def stages(of: Hook | None = None) -> st.SearchStrategy[Stage]:
    """Draw a stage: those that the hook claims, and the four update stages.

    Args:
        of: a hook; without one, any stage is drawn.

    >>> stages()
    sampled_from(functrain._stage.Stage)
    """
    claimed = [stage for stage in Stage if of is None or stage in of.stages]
    return st.sampled_from(Stage) if of is None or not claimed else st.sampled_from(claimed) | st.sampled_from(UPDATES)


@strategy(check_options)
def batches(draw: st.DrawFn, *, elements: st.SearchStrategy[float] = ORDINARY) -> FrozenMap[Any]:
    """Draw a micro-batch: ``x``, a tensor, and ``tokens``, a count that may weigh it.

    >>> batches()
    batches()
    """
    return FrozenMap({"x": draw(tensor_of((2,), torch.float32, elements)), "tokens": draw(st.integers(0, 9))})


@strategy(check_options)
def states(
    draw: st.DrawFn,
    hook: Any = None,
    *,
    models: Sequence[str] = ("main", "teacher"),
    optimizers: Sequence[str] = ("main", "head"),
    dtypes: Sequence[torch.dtype] = REAL,
    elements: st.SearchStrategy[float] | None = None,
) -> TrainState:
    """Draw a state; for a hook it holds the slot that ``init`` makes, and the slot has lived through a few calls.

    Some parameters have no gradient, some no optimizer, some no elements; a model but the first may be empty. Numbers
    are Python's, as in the shell.

    Args:
        draw: given by Hypothesis.
        hook: a hook, a function or a pipeline to prepare the state for. What its ``init`` refuses is not drawn.
        models: keys of the models.
        optimizers: keys of the optimizers.
        dtypes: of parameters and gradients.
        elements: of gradients and losses; by default ordinary numbers, and in every second state awkward ones, too.

    Raises:
        InvalidArgument: an option that cannot work.

    >>> from functrain import ClipNorm
    >>> states(ClipNorm(max_norm=1.0), models=["main"])
    states(hook=ClipNorm(max_norm=1.0), models=['main'])
    """
    found = elements if elements is not None else draw(st.sampled_from([ORDINARY, ORDINARY | AWKWARD]))
    params = draw(param_trees(models=models, dtypes=dtypes))
    table = draw(owners(params, optimizers))
    keys = tuple(table.table)
    bare = TrainState(
        params=params,
        buffers=FrozenMap({models[0]: FrozenMap[Tensor](draw(_buffers()))}),
        grads=draw(gradients(params, found)),
        loss=draw(tensor_of((), torch.float32, found)),
        raw_loss=draw(tensor_of((), torch.float32, found)),
        window=draw(windows()),
        clock=draw(clocks(keys)),
        stepped=FrozenMap({key: draw(st.booleans()) for key in keys}),
        scaler=draw(scalers(keys)),
        hyper=FrozenMap({key: {"0": {"lr": 0.1}} for key in keys}),
        batch=draw(batches()),
        validation=draw(_summaries(found)),
        world=draw(st.sampled_from([1, 1, 4])),
        owners=table,
    )
    return bare if hook is None else draw(lived(fold(hook), bare))


@st.composite
def _summaries(draw: st.DrawFn, elements: st.SearchStrategy[float]) -> FrozenMap[Any]:
    """Draw what a validation found: a number or a 0-d tensor; or none has been."""
    score = tensor_of((), torch.float32, elements)
    return FrozenMap({"total_loss": draw(score | score.map(Tensor.item))} if draw(st.booleans()) else {})


@st.composite
def _buffers(draw: st.DrawFn) -> dict[str, Tensor]:
    """Draw what BatchNorm keeps."""
    return {"mean": draw(tensor_of((2,), torch.float32, ORDINARY)), "count": torch.tensor(draw(st.integers(0, 9)))}


@st.composite
def lived(draw: st.DrawFn, pipeline: Pipeline, bare: TrainState) -> TrainState:
    """Prepare a state and lead it through a few calls; calls that fail leave the slots as they are."""
    state = prepared(pipeline, bare)
    for stage, will_skip, norm in draw(st.lists(st.tuples(st.sampled_from(UPDATES), st.booleans(), NORMS), max_size=4)):
        state = state.replace(hooks=_slots_after(pipeline, with_norm(state, norm), stage, will_skip=will_skip))
    return with_norm(state, draw(NORMS))


def prepared(pipeline: Pipeline, bare: TrainState) -> TrainState:
    """Return the state with every slot; a state that some ``init`` refuses is not drawn."""
    try:
        return pipeline.prepared(bare)
    except (TypeError, ValueError, KeyError):
        reject()


def _slots_after(pipeline: Pipeline, state: TrainState, stage: Stage, *, will_skip: bool) -> FrozenMap[Any]:
    """Return the slots after a call; what a hook raises is for the laws to find, not for their preparation."""
    try:
        with torch.no_grad():
            after = pipeline(state, stage, will_skip).state
    except Exception:  # noqa: BLE001 - see above
        return state.hooks
    return after.hooks


def with_norm(state: TrainState, norm: float | None) -> TrainState:
    """Return the state with a gradient norm, if some hook publishes one."""
    if norm is None or "grad_norm" not in state.metrics:
        return state
    return state.replace(metrics=state.metrics | FrozenMap({"grad_norm": torch.tensor(norm)}))


def dtypes_for(members: Iterable[Hook]) -> Sequence[torch.dtype]:
    """Return the dtypes that hooks are tried on: complex ones, too, if all of them say that they can."""
    return COMPLEX if all(type(innermost(each)) in COMPLEX_TOO for each in members) else REAL


COMPLEX_TOO = {Hook, Synthetic, *LIBRARY} - {ClipValue}
"""The classes that take complex gradients; who writes a hook of a real network need not."""
