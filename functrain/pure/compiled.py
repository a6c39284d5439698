"""A step compiled with nothing to be checked at each call but what may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import optree
import torch
from torch import Tensor

from functrain import _tree
from functrain._state import TrainState
from functrain.pure.dead_leaves import backend_of, owned, releasing
from functrain.pure.own_code import with_own_code

MOST_GRAPHS = 8
# Inductor would lay out the tensors of convolutions as for inference: the backward then copies them back.
CPU_OPTIONS = {"layout_optimization": False}
Step = Callable[[TrainState, Any], TrainState]


def compiled(step: Step, **options: Any) -> Step:
    """Return a step compiled as one graph; it gives what the step gives.

    ``torch.compile(step)`` does, too, and looks before each call whether any of the thousands of Python objects that it
    saw has changed, which takes as long as the arithmetic of a small model. A step is a function of its arguments
    alone, so here only they are looked at: the batch at each call, and the state if it is not the one that the call
    before returned. What the step closes over (the loss, the pipeline) must therefore stay as it is.

    A donated state comes back as the very same object, with other values in its tensors. Those that the step writes
    over without reading them (the gradients, where no ``Accumulate`` may keep them) have no memory while the
    step runs, as after ``zero_grad``; if it raises, they hold zeros.

    Args:
        step: what :func:`train_step` returned, or that under ``torch.func.vmap``.
        options: for ``torch.compile``.

    Raises:
        RuntimeError: a ninth kind of batch. Each shape is a graph of its own, and so is each Python number in a batch.

    >>> from functrain import pure
    >>> init, step, _ = pure.train_step(lambda params, buffers, x: (params["w"] - x) ** 2, pure.sgd(0.5), [])
    >>> quick = compiled(step, backend="eager")
    >>> quick(init({"w": torch.zeros(())}), torch.ones(())).params["main"]["w"]
    tensor(1.)
    """
    return _Compiled(step, options)


class _Compiled:
    """A step, its graphs by kind of arguments, and the leaves of the states it has met."""

    def __init__(self, step: Step, options: dict[str, Any]) -> None:
        self.step = step
        self.options: dict[str, Any] = {"fullgraph": True, "dynamic": False, **options}
        self.graphs: dict[Any, _Graph] = {}
        self.kinds: dict[Any, int] = {}
        self.known: WeakKeyDictionary[TrainState, _Flat] = WeakKeyDictionary()

    def __call__(self, state: TrainState, batch: Any) -> TrainState:
        """Run the graph for arguments of this kind."""
        state = state if state in self.known else self._met(state)
        flat = self.known[state]
        inputs, structure = _tree.flattened(batch)
        key = (flat.kind, structure, *map(_traits, inputs))
        given = [*flat.leaves, *(leaf for leaf in inputs if isinstance(leaf, Tensor))]
        graph = self.graphs.get(key)
        if graph is None:
            graph, given = self._built(key, state, batch), _each_its_own(given)
        found = graph.run(*given)
        if state.donated:
            graph.put(flat, found)
            return state
        after = cast("TrainState", optree.tree_unflatten(flat.structure, found))
        self.known[after] = flat._replace(leaves=found, numbers=_numbers(found))
        return after

    def _met(self, state: TrainState) -> TrainState:
        """Take note of a state that comes from elsewhere: of its leaves and its kind."""
        state = _apart(state) if state.donated else state
        leaves, structure = _tree.flattened(state)
        kind = (structure, *map(_traits, leaves))
        self.known[state] = _Flat(leaves, _numbers(leaves), structure, self.kinds.setdefault(kind, len(self.kinds)))
        return state

    def _built(self, key: Any, state: TrainState, batch: Any) -> _Graph:
        """Compile the step for arguments of one kind."""
        if len(self.graphs) >= MOST_GRAPHS:
            raise RuntimeError(TOO_MANY.format(count=MOST_GRAPHS, what=", ".join(map(str, key[2:]))))
        function = with_own_code(_on_leaves(self.step, state, batch))
        graph = _Graph(torch.compile(function, **_unguarded(self.options, state)), _reuses_results(self.options))
        return self.graphs.setdefault(key, graph)


class _Flat(NamedTuple):
    """The leaves of a state, those without dimensions once more, its structure, and the number of its kind."""

    leaves: list[Any]
    numbers: list[Any]
    structure: Any
    kind: int


class _Graph:
    """A compiled function, and which of its results have memory of their own; that is the same in each call."""

    def __init__(self, run: Callable[..., Any], reuses: bool) -> None:
        self.run, self.reuses = run, reuses
        self.own: list[bool] = []

    def put(self, flat: _Flat, found: list[Any]) -> None:
        """Give numbers of a donated state their new values; lanes have none without a dimension."""
        self.own = self.own or [own and not self.reuses for own in owned(flat.leaves, found, flat.numbers)]
        for leaf, fresh, own in zip(flat.numbers, found, self.own, strict=True):
            if own:
                leaf.data = fresh
            else:
                leaf.copy_(fresh)


def _numbers(leaves: Sequence[Any]) -> list[Any]:
    return [leaf for leaf in leaves if not leaf.ndim]


def _unguarded(given: dict[str, Any], state: TrainState) -> dict[str, Any]:
    """Return options for ``torch.compile`` without guards; a donated state's dead leaves are freed meanwhile."""
    backend = given.get("backend", "inductor")
    chosen: dict[str, Any] = {**(given.get("options") or {})}
    if backend == "inductor" and state.rng.device.type == "cpu":
        chosen = {**CPU_OPTIONS, **chosen}
    if not state.donated or _reuses_results(given):
        return {**given, "options": {**chosen, "guard_filter_fn": _none_of}}
    inner = releasing(backend_of(backend, chosen, given.get("dynamic")))
    return {**given, "backend": inner, "options": {"guard_filter_fn": _none_of}}


def _reuses_results(given: dict[str, Any]) -> bool:
    """Tell whether results are overwritten by the next call: those of CUDA graphs are."""
    chosen: dict[str, Any] = given.get("options") or {}
    return bool(chosen.get("triton.cudagraphs"))


TOO_MANY = (
    "pure.compiled has made {count} graphs, and this batch needs another one ({what}): each shape of a batch is a "
    "graph, and each Python number in it a constant of one; pad the batches to a few shapes, and make numbers tensors"
)


def _traits(leaf: Any) -> Any:
    """Return what a graph is made for: of a tensor its shape, dtype and device; anything else itself."""
    return (leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad) if isinstance(leaf, Tensor) else (type(leaf), leaf)


def _on_leaves(step: Step, state: TrainState, batch: Any) -> Callable[..., Any]:
    """Return the step as a function of the leaves of a state and of the tensors of a batch."""
    count, donated = len(_tree.leaves(state)), state.donated
    state_like, batch_like = _hollow(state.replace(donated=False)), _hollow(batch)
    # No tensor of the batch may be held here: the graph would read it from here, and not the argument, ever after.
    known = [(isinstance(leaf, Tensor), _number(leaf)) for leaf in _tree.leaves(batch)]

    def on_leaves(*leaves: Tensor) -> list[Tensor]:
        tensors = iter(leaves[count:])
        inputs = [next(tensors) if given else number for given, number in known]
        after = step(_tree.rebuilt(state_like, list(leaves[:count])), _tree.rebuilt(batch_like, inputs))
        found = _tree.leaves(_tree.map_leaves(_second, state_like, after))
        return _written(leaves[:count], found) if donated else found

    return on_leaves


def _written(before: Sequence[Tensor], found: list[Tensor]) -> list[Tensor]:
    """Write results over what a donated state held, and return the 0-d ones, which the caller has to write.

    torch 2.13 drops an in-place copy into a 0-d double that enters a graph, if nothing else uses the copy.
    """
    complete = [leaf.clone() for leaf in found]
    for old, leaf in zip(before, complete, strict=True):
        if leaf.ndim:
            old.copy_(leaf)
    return [leaf for leaf in complete if not leaf.ndim]


def _hollow(tree: Any) -> Any:
    """Return a tree of the same structure that holds no tensors, and keeps none alive."""
    return _tree.map_leaves(_nothing, tree)


def _nothing(_: Any) -> int:
    return 0


def _number(leaf: Any) -> Any:
    return 0 if isinstance(leaf, Tensor) else leaf


def _each_its_own(leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors that are there before: a graph made for one at two places would read one place only."""
    first = {id(leaf): place for place, leaf in reversed(list(enumerate(leaves)))}
    return [leaf if first[id(leaf)] == place else leaf.clone() for place, leaf in enumerate(leaves)]


def _second(_: Any, leaf: Any) -> Any:
    return leaf


def _apart(state: TrainState) -> TrainState:
    """Return a state in which no two leaves share memory: what is written to one must not be seen in another."""
    places = [leaf.data_ptr() for leaf in _tree.leaves(state) if leaf.numel()]
    return state if len(set(places)) == len(places) else _tree.map_leaves(torch.clone, state)


def _none_of(guards: list[Any]) -> list[bool]:
    return [False] * len(guards)
