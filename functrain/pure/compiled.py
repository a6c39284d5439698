"""A step compiled with nothing to be checked at each call but what may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import optree
import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingModuleSource]

from functrain import _tree
from functrain._state import TrainState
from functrain.pure.by_kind import Graphs, hollow, taking
from functrain.pure.graph import each_its_own, traits

Step = Callable[[TrainState, Any], TrainState]


def compiled(
    step: Step, *, backend: Any = "inductor", mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Step:
    """Return a step compiled as one graph; it gives what the step gives.

    ``torch.compile(step)`` does, too. It reads the Python of a step to make the graph, and looks before each call
    whether any of the thousands of objects that it saw has changed, which takes as long as the arithmetic of a small
    model. A step is a function of its arguments alone: here it is run once, on tensors without values, to make the
    graph, and then only the arguments are looked at: the batch at each call, and the state if it is not the one that
    the call before returned. What the step closes over (the loss, the pipeline), and what is set around it (autocast,
    the default dtype), must therefore stay as it was at the first call.

    A donated state comes back as the very same object, with other values in its tensors. Those that the step writes
    over without reading them (the gradients, where no ``Accumulate`` may keep them) have no memory while the
    step runs, as after ``zero_grad``; if it raises, they hold zeros.

    Inside another transform (``vmap``, ``grad``, ``torch.compile``) it is the step itself.

    Args:
        step: what :func:`train_step` returned, or that under ``torch.func.vmap``.
        backend: as in ``torch.compile``: "inductor", "aot_eager", "eager", or a function of a graph and its inputs.
        mode: as in ``torch.compile``, for Inductor.
        options: as in ``torch.compile``, for the backend.

    Raises:
        RuntimeError: a ninth kind of batch: each shape is a graph of its own, and so is each Python number in a batch.
            A step that asks for the value of a tensor.
        ValueError: a tensor that requires a gradient: the graph knows none.

    >>> from functrain import pure
    >>> init, step, _ = pure.train_step(lambda params, buffers, x: (params["w"] - x) ** 2, pure.sgd(0.5), [])
    >>> quick = compiled(step, backend="eager")
    >>> quick(init({"w": torch.zeros(())}), torch.ones(())).params["main"]["w"]
    tensor(1.)
    """
    return _Compiled(step, {"backend": backend, "mode": mode, "options": options})


class _Compiled:
    """A step, its graphs by kind of arguments, and the leaves of the states it has met."""

    def __init__(self, step: Step, how: Mapping[str, Any]) -> None:
        self.step, self.graphs = step, Graphs("pure.compiled", how)
        self.kinds: dict[Any, int] = {}
        self.known: WeakKeyDictionary[TrainState, _Flat] = WeakKeyDictionary()

    def __call__(self, state: TrainState, batch: Any) -> TrainState:
        """Run the graph for arguments of this kind."""
        if torch.compiler.is_compiling() or _inside_a_transform():
            return self.step(state, batch)
        state = state if state in self.known else self._met(state)
        flat = self.known[state]
        inputs, structure = _tree.flattened(batch)
        key = (flat.kind, structure, *map(traits, inputs))
        given = [*flat.leaves, *(leaf for leaf in inputs if isinstance(leaf, Tensor))]
        graph = self.graphs.held.get(key)
        if graph is None:
            given = each_its_own(given)
            graph = self.graphs.made(key, _on_leaves(self.step, state, batch), given, donated=state.donated)
        found = graph(*given)
        if state.donated:
            return state
        after = cast("TrainState", optree.tree_unflatten(flat.structure, found))
        self.known[after] = flat._replace(leaves=list(found))
        return after

    def _met(self, state: TrainState) -> TrainState:
        """Take note of a state that comes from elsewhere: of its leaves and its kind."""
        state = _apart(state) if state.donated else state
        leaves, structure = _tree.flattened(state)
        kind = (structure, *map(traits, leaves))
        self.known[state] = _Flat(leaves, structure, self.kinds.setdefault(kind, len(self.kinds)))
        return state


def _inside_a_transform() -> bool:
    """Tell whether vmap, grad or another transform of torch.func is at work."""
    return cast("Any", peek_interpreter_stack()) is not None


class _Flat(NamedTuple):
    """The leaves of a state, its structure, and the number of its kind."""

    leaves: list[Any]
    structure: Any
    kind: int


def _on_leaves(step: Step, state: TrainState, batch: Any) -> Callable[..., Any]:
    """Return the step as a function of the leaves of a state and of the tensors of a batch."""
    count, donated = len(_tree.leaves(state)), state.donated
    state_like, batch_like, take = hollow(state.replace(donated=False)), hollow(batch), taking(_tree.leaves(batch))

    def on_leaves(*leaves: Tensor) -> list[Tensor]:
        before = _tree.rebuilt(state_like, list(leaves[:count]))
        after = step(before, _tree.rebuilt(batch_like, take(leaves[count:])))
        found = _tree.leaves(_tree.map_leaves(_second, state_like, after))
        return _written(leaves[:count], found) if donated else found

    return on_leaves


def _written(before: Sequence[Tensor], found: list[Tensor]) -> list[Tensor]:
    """Write results over what a donated state held, all of them complete before the first; return nothing."""
    for old, complete in zip(before, [leaf.clone() for leaf in found], strict=True):
        old.copy_(complete)
    return []


def _second(_: Any, leaf: Any) -> Any:
    return leaf


def _apart(state: TrainState) -> TrainState:
    """Return a state in which no two leaves share memory: what is written to one must not be seen in another."""
    places = [leaf.data_ptr() for leaf in _tree.leaves(state) if leaf.numel()]
    return state if len(set(places)) == len(places) else _tree.map_leaves(torch.clone, state)
