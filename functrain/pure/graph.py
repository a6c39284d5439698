"""A function of tensors as one graph, and what compiles it: with no frame, guard or wrapper around it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, compiler
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from functrain.pure.errors import explained

Graph: TypeAlias = Callable[..., Sequence[Any]]
Backend: TypeAlias = Callable[[GraphModule, list[Any]], Graph]

# Shapes and strides are looked at before each call, by kind: Inductor need not look again.
OPTIONS = {"size_asserts": False}
# It would lay out the tensors of convolutions as for inference, which the backward then copies back.
CPU_OPTIONS = {**OPTIONS, "layout_optimization": False, "alignment_asserts": False}
DIFFERENTIATED = (
    "a tensor of shape {shape} in the state or the batch requires a gradient, and a compiled step has none to give: "
    "pass tensor.detach(), or differentiate torch.compile(step, fullgraph=True)"
)


def captured(function: Callable[..., Any], leaves: Sequence[Tensor]) -> GraphModule:
    """Return the graph of what a function does to tensors like these; nothing is computed.

    The function runs once, on tensors without values. Python is run, not read, so that a whole step takes a tenth of
    the time that Dynamo needs for it, and nothing is left that would have to be guarded.

    Args:
        function: of tensors, to a list of tensors; may write into its arguments.
        leaves: tensors of the shapes, strides, dtypes and devices of those that the graph will be given; no two of
            them the same.

    Raises:
        RuntimeError: the function asks for the value of a tensor; says what to write instead.
        ValueError: a tensor that requires a gradient.

    >>> graph = captured(lambda x, y: [x + y], [torch.ones(2), torch.ones(2)])
    >>> graph(torch.ones(2), torch.tensor([1.0, 2.0]))
    [tensor([2., 3.])]
    """
    for leaf in leaves:
        if leaf.requires_grad:
            raise ValueError(DIFFERENTIATED.format(shape=tuple(leaf.shape)))
    hollow = FakeTensorMode(allow_non_fake_inputs=True)
    with _compiling(), compiler.set_stance("force_eager"):
        module = explained("the step", make_fx(function, tracing_mode="fake"), *map(hollow.from_tensor, leaves))
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


@contextmanager
def _compiling() -> Generator[None]:
    """Let ``torch.compiler.is_compiling()`` be true, as ``torch.export`` does where it, too, runs Python as it is."""
    module: Any = compiler
    before, module._is_compiling_flag = module._is_compiling_flag, True  # noqa: SLF001 - there is no other way in
    try:
        yield
    finally:
        module._is_compiling_flag = before  # noqa: SLF001


def compiler_of(
    device: torch.device, backend: Any = "inductor", mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Backend:
    """Return what compiles a graph for a device, by the words of ``torch.compile``."""
    wrappers = vars(torch)
    if backend != "inductor":
        return wrappers["_TorchCompileWrapper"](backend, mode, options, dynamic=False)
    own = CPU_OPTIONS if device.type == "cpu" else OPTIONS
    return wrappers["_TorchCompileInductorWrapper"](mode, {**own, **(options or {})}, dynamic=False)


def reuses_results(backend: Backend) -> bool:
    """Tell whether results are overwritten by the next call: those of CUDA graphs are."""
    return bool(getattr(backend, "config", {}).get("triton.cudagraphs"))


def traits(leaf: Any) -> Any:
    """Return what a graph is made for: of a tensor its layout, dtype and device; anything else itself.

    Raises:
        TypeError: what is neither a tensor nor hashable, such as an array of numpy.

    >>> traits(1) == traits(1.0), traits(torch.ones(2)) == traits(torch.zeros(2))
    (False, True)
    """
    if not isinstance(leaf, Tensor):
        return type(leaf), _constant(leaf)
    return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad


def _constant(leaf: Any) -> Hashable:
    """Return what a graph keeps as it is, and must be able to know again."""
    if not isinstance(leaf, Hashable):
        kind = type(leaf).__name__
        msg = f"a batch of a compiled step holds tensors and constants, got {kind}; write torch.as_tensor(x)"
        raise TypeError(msg)
    return leaf


def each_its_own(leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors that are there before: a graph made for one at two places would read one place only.

    >>> one = torch.ones(2)
    >>> len({id(leaf) for leaf in each_its_own([one, one])})
    2
    """
    first = {id(leaf): place for place, leaf in reversed(list(enumerate(leaves)))}
    return [leaf if first[id(leaf)] == place else leaf.clone() for place, leaf in enumerate(leaves)]
