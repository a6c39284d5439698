"""The real optimizers and schedulers of a shell, aligned by key."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from operator import is_
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from functrain._owners import Owners
from functrain._tree import FrozenMap
from functrain.shell.grad_mode import UNCHANGED
from functrain.shell.models import Models, keyed
from functrain.shell.ownership import owners_of


class Optimizers:
    """Optimizers by key, each with its scheduler or None."""

    def __init__(self, given: Any, schedulers: Any, models: Models) -> None:
        """Align schedulers with optimizers, and find out who holds which parameter.

        Raises:
            ValueError: an optimizer that needs a closure, a parameter in two of them or in no model, more schedulers
                than optimizers.
        """
        self.by_key = keyed(given, Optimizer, "optimizers")
        self.schedulers = _aligned(schedulers, self.by_key)
        self._models = models
        self._sort_out()
        self._read: FrozenMap[Any] = FrozenMap()
        self._values: list[Any] = []

    def _sort_out(self) -> None:
        """Find out who holds which parameter, and which nobody does."""
        self.owners = owners_of(self.by_key, self._models)
        self._sizes = self._group_sizes()
        held = {place for places in self.owners.table.values() for place in places}
        self._unheld = [leaf for key, name, leaf in self._models.places if (key, name) not in held]

    def _group_sizes(self) -> list[list[int]]:
        return [[len(group["params"]) for group in each.param_groups] for each in self.by_key.values()]

    def current_owners(self) -> Owners:
        """Return who holds which parameter now: ``add_param_group`` may have added some.

        Raises:
            ValueError: what was added belongs to no model or to another optimizer.
        """
        if self._group_sizes() != self._sizes:
            self._sort_out()
        return self.owners

    def zero_grad(self) -> bool:
        """Clear gradients, also of trainable parameters that nobody holds; return whether for sure none is left."""
        cleared = True
        for optimizer in self.by_key.values():
            cleared = _clear(optimizer) and cleared
        for leaf in self._unheld:
            if leaf.requires_grad:
                leaf.grad = None
            cleared = cleared and leaf.grad is None
        return cleared

    def hyper(self) -> FrozenMap[Any]:
        """Return the numbers of all groups; the same object as long as none has changed."""
        values = [
            value for optimizer in self.by_key.values() for group in optimizer.param_groups for value in group.values()
        ]
        if len(values) != len(self._values) or not all(map(is_, values, self._values)):
            self._values = values
            self._read = self._read if self._is_as_read() else _nested(self._groups())
        return self._read

    def _groups(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield every group under the key of its optimizer and its place there."""
        for key, optimizer in self.by_key.items():
            for place, group in enumerate(optimizer.param_groups):
                yield key, str(place), group

    def _is_as_read(self) -> bool:
        """Tell whether no number has changed; by identity first, since comparing tensors would ask a device."""
        sizes = {key: len(optimizer.param_groups) for key, optimizer in self.by_key.items()}
        if sizes != {key: len(groups) for key, groups in self._read.items()}:
            return False
        return all(_shows(self._read[key][place], group) for key, place, group in self._groups())

    def overridden(self, wanted: FrozenMap[Any]) -> AbstractContextManager[None]:
        """Let hyper-parameters that a hook changed hold for one step."""
        return UNCHANGED if wanted is self._read else self._overridden(list(self._changes(wanted)))

    @contextmanager
    def _overridden(self, changes: list[tuple[dict[str, Any], str, Any, Any]]) -> Generator[None]:
        for group, name, _, value in changes:
            group[name] = value
        try:
            yield
        finally:
            for group, name, old, _ in changes:
                group[name] = old

    def _changes(self, wanted: FrozenMap[Any]) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
        for key, groups in wanted.items():
            for place, numbers in groups.items():
                group = self.by_key[key].param_groups[int(place)]
                for name, value in numbers.items():
                    if value is not group[name]:
                        yield group, name, group[name], value

    def step_scheduler(self, key: str) -> None:
        """Advance the scheduler of an optimizer that has stepped, unless it waits for a metric."""
        scheduler = self.schedulers[key]
        if scheduler is not None and not isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step()

    def metric_schedulers(self) -> list[ReduceLROnPlateau]:
        """Return the schedulers that wait for a metric."""
        return [each for each in self.schedulers.values() if isinstance(each, ReduceLROnPlateau)]


def _clear(optimizer: Optimizer) -> bool:
    """Clear the gradients of an optimizer: its own way if it has one; torch's takes most of its time for a profiler.

    Return whether it was torch's way, after which none is left.
    """
    if getattr(optimizer.zero_grad, "__func__", None) is not Optimizer.zero_grad:
        optimizer.zero_grad(set_to_none=True)
        return False
    for group in optimizer.param_groups:
        for leaf in group["params"]:
            leaf.grad = None
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Tensor) and not isinstance(value, bool)


def _shows(read: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    """Tell whether a group still has the numbers that were read from it, and no others."""
    for name, value in group.items():
        if name in read:
            if value is not read[name] and not _equal(value, read[name]):
                return False
        elif _is_number(value):
            return False
    return len(read.keys() & group.keys()) == len(read)


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not isinstance(a, Tensor) and a == b


def _nested(found: Iterable[tuple[str, str, dict[str, Any]]]) -> FrozenMap[Any]:
    """Nest the numbers of groups by optimizer and place."""
    result: dict[str, dict[str, Any]] = {}
    for key, place, group in found:
        numbers = {name: value for name, value in group.items() if _is_number(value)}
        result.setdefault(key, {})[place] = numbers
    return FrozenMap(result)


def _aligned(given: Any, optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
    """Return one scheduler or None per optimizer."""
    if isinstance(given, Mapping):
        found = {str(key): each for key, each in cast("Mapping[Any, Any]", given).items()}
    else:
        listed: list[Any] = [] if given is None else [*given] if isinstance(given, list | tuple) else [given]
        if len(listed) > len(optimizers):
            msg = f"{len(listed)} schedulers for {len(optimizers)} optimizers; give one, or None, per optimizer"
            raise ValueError(msg)
        found = dict(zip(optimizers, listed, strict=False))
    if unknown := sorted(found.keys() - optimizers.keys()):
        msg = f"schedulers for {unknown}, but the optimizers are {sorted(optimizers)}"
        raise KeyError(msg)
    _check_alignment(found, optimizers)
    return {key: found.get(key) for key in optimizers}


def _check_alignment(schedulers: Mapping[str, Any], optimizers: Mapping[str, Optimizer]) -> None:
    """Refuse what is no scheduler, and a scheduler that stands beside one optimizer and drives another."""
    for key, scheduler in schedulers.items():
        if scheduler is not None and (isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None))):
            msg = f"the scheduler of optimizer {key!r} must have a step(), or be None; got {scheduler!r}"
            raise TypeError(msg)
        driven = getattr(scheduler, "optimizer", None)
        for other, optimizer in optimizers.items():
            if driven is optimizer and other != key and driven is not optimizers[key]:
                msg = f"the scheduler of optimizer {key!r} drives optimizer {other!r}; align schedulers with optimizers"
                raise ValueError(msg)
        if isinstance(driven, Optimizer) and not _share_groups(driven, optimizers[key]):
            msg = (
                f"the scheduler of optimizer {key!r} drives an optimizer that is not in this shell, so its learning "
                "rates would reach nobody; make it from the optimizer that you pass"
            )
            raise ValueError(msg)


def _share_groups(one: Optimizer, other: Optimizer) -> bool:
    """Tell whether two optimizers are one, or one wraps the other: then they show the same groups."""
    return one is other or any(mine is group for mine in one.param_groups for group in other.param_groups)
