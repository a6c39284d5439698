"""When gradients of several ranks become one: in the backward that closes a window, and only there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Reduction(Protocol):
    """How one wrapped module reduces its gradients."""

    def defer(self) -> None:
        """Keep the forward and the backward that follow to this rank."""
        ...

    def expect(self) -> None:
        """Let the backward that follows reduce."""
        ...

    def close(self, *, differentiated: bool) -> None:
        """Go back to how the module is outside a micro-batch, whose backward has run or not."""
        ...

    def reduce(self) -> None:
        """Reduce the gradients that have been kept to this rank, by a backward of zeros."""
        ...

    def hides_gradients(self) -> bool:
        """Tell whether the module keeps gradients of the open window out of ``grad``."""
        ...

    def forget(self) -> None:
        """Note that what was kept is discarded; whatever that costs waits for the next micro-batch."""
        ...


class Replicas:
    """Reduction of a ``DistributedDataParallel``."""

    def __init__(self, module: Any) -> None:
        """Nothing is deferred."""
        self._module = module
        self._params = [leaf for leaf in module.module.parameters() if leaf.requires_grad]
        self._quiet: AbstractContextManager[None] = nullcontext()
        self._armed, self._learns = False, bool(module.static_graph)

    def defer(self) -> None:
        """Open no-sync, which must span the forward: that is what arms the reducer."""
        if self._learns:  # a static graph is learned in the first backward, which must reduce
            self._armed = True
            return
        if self._armed:  # by a forward that no backward has followed; it would reduce the next one
            with _without_gradients(self._params):
                self._differentiate_zeros(self._params)
        self._quiet = self._module.no_sync()
        self._quiet.__enter__()

    def expect(self) -> None:
        """Leave the module as it is: its forward arms the reducer."""
        self._armed = True

    def close(self, *, differentiated: bool) -> None:
        """Close no-sync."""
        self._learns = self._learns and not differentiated
        self._armed = self._armed and not differentiated
        quiet, self._quiet = self._quiet, nullcontext()
        quiet.__exit__(None, None, None)

    def reduce(self) -> None:
        """Reduce in the reducer's own buckets and hooks; a module that the window has not used is left alone."""
        held = [leaf for leaf in self._params if leaf.grad is not None]
        if held:
            self._differentiate_zeros(held if self._module.find_unused_parameters else self._params)

    def _differentiate_zeros(self, leaves: Iterable[Tensor]) -> None:
        """Run a backward that adds zero to every gradient; parameters that are left out count as unused."""
        with torch.enable_grad():
            outputs = [leaf.view_as(leaf) for leaf in leaves]
            self._module.reducer.prepare_for_backward(outputs if self._module.find_unused_parameters else [])
            torch.autograd.backward(outputs, [torch.zeros_like(leaf) for leaf in outputs])
        self._armed = False

    def hides_gradients(self) -> bool:
        """Tell that all are in ``grad``."""
        return False

    def forget(self) -> None:
        """Do nothing: gradients that are cleared are gone."""


class Shards:
    """Reduction of a module under ``fully_shard``, which keeps what is not reduced to itself, out of ``grad``."""

    def __init__(self, root: Any, is_shard: Callable[[nn.Module], bool]) -> None:
        """Take the outermost sharded module; the parameters are those of now, while it is sharded."""
        self._root, self._is_shard = root, is_shard
        self._params = [leaf for leaf in root.parameters() if leaf.requires_grad]
        self._reduces, self._kept, self._stale = True, False, False

    def defer(self) -> None:
        """Let the module accumulate without reducing."""
        self._clear()
        self._set(reduces=False)

    def expect(self) -> None:
        """Let the module reduce what it has accumulated, too."""
        self._clear()
        self._set(reduces=True)

    def _set(self, *, reduces: bool) -> None:
        """Tell the module, which walks over all its parts, only what it does not know."""
        if reduces != self._reduces:
            self._root.set_requires_gradient_sync(reduces)
            self._reduces = reduces

    def close(self, *, differentiated: bool) -> None:
        """Note what the backward has left behind."""
        if differentiated:
            self._kept = not self._reduces

    def reduce(self) -> None:
        """Run a forward and a backward that add zero to every gradient; with nothing kept there is nothing to do."""
        if not self._kept:
            return
        self._set(reduces=True)
        parts = [part for part in self._root.modules() if self._is_shard(part)]
        with torch.enable_grad(), _replaced_forwards(parts, self._zero):
            self._root().backward()
        self._kept = self._stale = False

    def _zero(self, part: nn.Module) -> Tensor:
        """Return zero as a function of all parameters of a sharded part, in the way in which its parts nest."""
        total = torch.zeros((), device=self._params[0].device)
        for leaf in self._own(part):
            total = total + 0.0 * leaf.abs().sum()
        for child in self._nested(part):
            total = total + child()
        return total

    def _own(self, part: nn.Module) -> Iterable[Tensor]:
        """Yield the parameters that a part holds outside the sharded parts in it."""
        yield from (leaf for leaf in part.parameters(recurse=False) if leaf.requires_grad)
        for child in part.children():
            if not self._is_shard(child):
                yield from self._own(child)

    def _nested(self, part: nn.Module) -> Iterable[nn.Module]:
        """Yield the outermost sharded parts inside a part."""
        for child in part.children():
            yield from [child] if self._is_shard(child) else self._nested(child)

    def hides_gradients(self) -> bool:
        """Tell whether anything is kept that has not been discarded."""
        return self._kept and not self._stale

    def forget(self) -> None:
        """Note that what was kept belongs to no window any more."""
        self._stale = self._kept

    def _clear(self) -> None:
        """Reduce what belongs to no window, and drop it: nothing else empties the module."""
        if self._stale:
            self._root.reset_iter_state()
            with _without_gradients(self._params):
                self.reduce()


@contextmanager
def _without_gradients(params: Iterable[Tensor]) -> Generator[None]:
    """Take gradients away for a while; those that come meanwhile are dropped."""
    kept = [(leaf, leaf.grad) for leaf in params]
    for leaf, _ in kept:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, grad in kept:
            leaf.grad = grad


@contextmanager
def _replaced_forwards(parts: Iterable[nn.Module], forward: Callable[[nn.Module], Tensor]) -> Generator[None]:
    """Give modules another forward for a while; their hooks stay."""
    kept = [(part, vars(part).get("forward")) for part in parts]
    try:
        for part, _ in kept:
            part.forward = partial(forward, part)
        yield
    finally:
        for part, own in kept:
            vars(part).pop("forward", None)
            if own is not None:
                part.forward = own
