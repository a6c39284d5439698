"""Leaves that a graph overwrites without reading them: they need no memory while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node

from functrain.pure.graph import Backend, Graph

# What hands a leaf on as it is, and what only looks at its shape.
HANDING_ON = {"detach"}
SHAPE_ONLY = {"zeros_like", "ones_like", "empty_like", "full_like"}


def releasing(backend: Backend) -> Backend:
    """Return a backend whose graphs free the memory of inputs that they overwrite unread, and give them new memory.

    A compiler writes results over inputs at the end, so an input that nothing reads would lie idle beside the result
    that is to replace it: the gradients of the last step beside those of this one. A loop frees them in ``zero_grad``.
    Each such input stays the same tensor object. If the graph raises it holds zeros, which nothing will read either.

    Args:
        backend: what ``torch.compile`` hands a graph and its inputs to.
    """

    def compile_releasing(module: GraphModule, inputs: list[Any]) -> Graph:
        places = _taken_out(module)
        graph = backend(module, inputs)
        return _Releasing(graph, places) if places else graph

    return compile_releasing


class _Releasing:
    """A graph that returns, behind its own results, what its dead inputs are to hold afterwards."""

    def __init__(self, graph: Graph, places: list[int]) -> None:
        self.graph, self.places = graph, places
        self.hollow: list[Tensor] = []
        self.own: list[bool] = []

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run the graph; an exception on the way, too, leaves every input with memory."""
        dead = [inputs[place] for place in self.places]
        self.hollow = self.hollow or [_without_memory(leaf) for leaf in dead]
        try:
            return self._run(inputs, dead)
        except BaseException:
            for leaf, hollow in zip(dead, self.hollow, strict=True):
                if not leaf.untyped_storage().nbytes():
                    leaf.data = torch.zeros_like(hollow)
            raise

    def _run(self, inputs: Sequence[Any], dead: list[Tensor]) -> Sequence[Any]:
        """Return the results that are not put into dead inputs."""
        for leaf, hollow in zip(dead, self.hollow, strict=True):
            leaf.data = hollow
        found = self.graph(*inputs)
        count = len(found) - len(dead)
        self.own = self.own or owned(inputs, found, self.hollow)
        for leaf, fresh, own, hollow in zip(dead, found[count:], self.own, self.hollow, strict=True):
            leaf.data = fresh if own else torch.empty_like(hollow).copy_(fresh)
        return found[:count]


def _taken_out(module: GraphModule) -> list[int]:
    """Let a graph return what it would write over dead inputs, last, and return the places of these inputs."""
    inputs = list(module.graph.find_nodes(op="placeholder"))
    places = [place for place, leaf in enumerate(inputs) if _is_dead(leaf)]
    output = module.graph.output_node()
    for place in places:
        (copy,) = _copies(inputs[place])
        output.args = ((*cast("Sequence[Any]", output.args[0]), copy.args[1]),)
        module.graph.erase_node(copy)
    module.recompile()
    return places


def _is_dead(leaf: Node) -> bool:
    """Tell whether an input is written over as a whole, once, and is not read."""
    value = leaf.meta.get("val")
    # A number is not worth the two calls.
    if type(value) is not FakeTensor or not value.numel() or not value.ndim or len(_copies(leaf)) != 1:
        return False
    return not value.requires_grad and not any(_reads(user, leaf) for user in leaf.users if user not in _copies(leaf))


def _copies(leaf: Node) -> list[Node]:
    """Return where a graph writes over an input and takes no note of the result."""
    return [user for user in leaf.users if _name(user) == "copy_" and user.args[0] is leaf and not user.users]


def _reads(user: Node, leaf: Node) -> bool:
    """Tell whether a node, or one that it hands its first argument on to, needs the values of that."""
    if leaf is not user.args[0] or list(user.all_input_nodes) != [leaf]:
        return True
    if _name(user) in HANDING_ON:
        return any(_reads(each, user) for each in user.users)
    return _name(user) not in SHAPE_ONLY


def _name(node: Node) -> str:
    """Return the name of the operation that a node calls, without its overload."""
    return getattr(node.target, "__name__", "").partition(".")[0]


def _without_memory(leaf: Tensor) -> Tensor:
    """Return a tensor of the same shape, strides, dtype and device that has no memory."""
    hollow = torch.empty_like(leaf)
    hollow.untyped_storage().resize_(0)
    return hollow


def owned(inputs: Sequence[Any], found: Sequence[Any], likes: Sequence[Tensor]) -> list[bool]:
    """Tell which results have memory that nothing else has a part in, laid out as the input had it.

    A compiler may make one tensor of two equal results, or a result a part of something larger: in all calls, or none.
    """
    tensors = [leaf for leaf in (*inputs, *found) if isinstance(leaf, Tensor)]
    shared = Counter(leaf.untyped_storage().data_ptr() for leaf in tensors)
    pairs = zip(found[len(found) - len(likes) :], likes, strict=True)
    return [
        shared[fresh.untyped_storage().data_ptr()] == 1
        and fresh.untyped_storage().nbytes() == fresh.numel() * fresh.element_size()
        and fresh.stride() == like.stride()
        for fresh, like in pairs
    ]
