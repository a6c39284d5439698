"""The graphs of a function: one for each kind of arguments, made when such arguments first come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from functrain import _tree
from functrain.pure.dead_leaves import releasing
from functrain.pure.graph import Graph, captured, compiler_of, each_its_own, reuses_results, traits

MOST_GRAPHS = 8
# torch traces for one thread at a time, and says for the whole process that it does.
BUILDING = RLock()
TOO_MANY = (
    "{who} has made {count} graphs, and this batch needs another one ({what}): each shape of a batch is a graph, and "
    "each Python number in it a constant of one; pad the batches to a few shapes, and make numbers tensors"
)


class Graphs:
    """Compiled graphs by what they were made for.

    Args:
        who: what is called, for messages.
        how: backend, mode and options, as for ``torch.compile``.
    """

    def __init__(self, who: str, how: Mapping[str, Any]) -> None:
        self.who, self.how = who, how
        self.held: dict[Any, Graph] = {}

    def made(
        self, key: Sequence[Any], function: Callable[..., Any], given: Sequence[Tensor], *, donated: bool
    ) -> Graph:
        """Return a new graph of a function of tensors; of donated ones it frees those that it overwrites unread.

        Raises:
            RuntimeError: too many.
        """
        if len(self.held) >= MOST_GRAPHS:
            raise RuntimeError(TOO_MANY.format(who=self.who, count=MOST_GRAPHS, what=", ".join(map(str, key[2:]))))
        with BUILDING:
            return self.held.setdefault(tuple(key), self._compiled(function, given, donated=donated))

    def _compiled(self, function: Callable[..., Any], given: Sequence[Tensor], *, donated: bool) -> Graph:
        backend = compiler_of(given[0].device if given else torch.device("cpu"), **self.how)
        # What the next call overwrites cannot become a leaf of the state.
        backend = releasing(backend) if donated and not reuses_results(backend) else backend
        return backend(captured(function, given), list(given))


class ByKind:
    """A function of pytrees, compiled once for each structure, shape and dtype; Python numbers are constants.

    Args:
        function: of pytrees of tensors, to a pytree of tensors.
        who: what is called, for messages.
        how: backend, mode and options, as for ``torch.compile``.

    >>> double = ByKind(lambda tree: {"y": 2 * tree["x"]}, "double", {"backend": "eager"})
    >>> double({"x": torch.ones(2)})
    {'y': tensor([2., 2.])}
    """

    def __init__(self, function: Callable[..., Any], who: str, how: Mapping[str, Any]) -> None:
        self.function, self.graphs = function, Graphs(who, how)
        self.results: dict[Any, Any] = {}

    def __call__(self, *trees: Any) -> Any:
        """Run the graph for arguments of this kind."""
        leaves, structure = _tree.flattened(trees)
        key = (structure, len(leaves), *map(traits, leaves))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        graph = self.graphs.held.get(key)
        if graph is None:
            given = each_its_own(given)
            graph = self.graphs.made(key, self._on_tensors(key, hollow(trees), leaves), given, donated=False)
        return _tree.rebuilt(self.results[key], list(graph(*given)))

    def _on_tensors(self, key: Any, like: Any, leaves: Sequence[Any]) -> Callable[..., list[Tensor]]:
        """Return the function on the tensors alone; the structure of its result is kept."""
        take = taking(leaves)

        def on_tensors(*tensors: Tensor) -> list[Tensor]:
            found = self.function(*_tree.rebuilt(like, take(tensors)))
            self.results[key] = hollow(found)
            return _tree.leaves(found)

        return on_tensors


def taking(leaves: Sequence[Any]) -> Callable[[Sequence[Tensor]], list[Any]]:
    """Return what puts tensors where leaves are tensors, and the numbers of now elsewhere; it holds no tensor.

    A graph would read a tensor that it finds held from there, and not from its argument, ever after.

    >>> taking([torch.zeros(1), 2])([torch.ones(1)])
    [tensor([1.]), 2]
    """
    known = [(isinstance(leaf, Tensor), None if isinstance(leaf, Tensor) else leaf) for leaf in leaves]

    def take(tensors: Sequence[Tensor]) -> list[Any]:
        each = iter(tensors)
        return [next(each) if is_tensor else number for is_tensor, number in known]

    return take


def hollow(tree: Any) -> Any:
    """Return a tree of the same structure that holds no tensors, and keeps none alive.

    >>> hollow({"x": torch.ones(2)})
    {'x': 0}
    """
    return _tree.map_leaves(_nothing, tree)


def _nothing(_: Any) -> int:
    return 0
