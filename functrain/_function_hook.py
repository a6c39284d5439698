"""Plain functions as hooks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

from functrain._hook import Hook, HookFunction, Outcome
from functrain._select import Flag
from functrain._stage import Stage
from functrain._state import TrainState


class FunctionHook(Hook):
    """A plain function ``(state, stage, will_skip) -> (state, proceed, loss)`` as a hook; made by :func:`hook`."""

    function: Any
    initial: Any = None

    def default_name(self) -> str:
        """Return the function's own name; a partial has none."""
        return getattr(self.function, "__name__", "")

    def init(self, state: TrainState) -> Any:
        """Build the slot with the function given as ``init``, else keep nothing."""
        return super().init(state) if self.initial is None else self.initial(state)

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Call the function."""
        return self.function(state, stage, will_skip)

    def __repr__(self) -> str:
        """Show the function by its name, and sets in order: an address would be another one in each process."""
        names = {"initial": "init"}
        given = [f"{names.get(str(n), n)}={_shown(value)}" for n, value in self.__repr_args__() if n != "function"]
        return f"hook({', '.join([_shown(self.function), *given])})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a decorated function by module and qualified name: the name now means this hook, not the function."""
        home = self.function.__module__, getattr(self.function, "__qualname__", "")
        found = _resolve(*home)
        if not isinstance(found, FunctionHook) or found.function is not self.function:
            return super().__reduce_ex__(protocol)  # a bare function pickles by reference, a partial by content
        changes = {name: value for name, value in self if value != getattr(found, name)}
        return _decorated, (*home, changes)


def _shown(value: Any) -> str:
    """Return the name of a function, the sorted members of a set, or anything else as Python prints it."""
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(repr, cast('frozenset[Any]', value))))}}}"
    if isinstance(value, partial):
        return f"partial({_shown(value.func)})"
    return getattr(value, "__name__", repr(value))


def _resolve(module: str, qualname: str) -> Any:
    """Return what a qualified name means now, or None."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _decorated(module: str, qualname: str, changes: dict[str, Any]) -> Any:
    """Find a decorated hook again by its name, and give it back its changes."""
    __import__(module)
    found = _resolve(module, qualname)
    return found.model_copy(update=changes) if changes else found


def is_plain_function(value: object) -> bool:
    """Tell functions, methods and partials from other callables: a module or a class is not meant to be a hook."""
    return isinstance(value, FunctionType | MethodType | BuiltinFunctionType | partial)


def hook(function: HookFunction | None = None, /, **options: Any) -> Any:
    """Turn a plain function into a hook of the same name.

    Args:
        function: ``(state, stage, will_skip) -> (state, proceed, loss)``; must be pure.
        options: ``priority``, ``name``, ``stages``, ``writes``, ``publishes``, ``reads``, ``exclusive``,
            ``rank_local`` as in :class:`Hook`, and ``init(state) -> slot``.

    >>> @hook(stages=Stage.DO_BACKWARD)
    ... def halve(state, stage, will_skip):
    ...     return state, True, state.loss / 2
    >>> halve.name, halve.priority
    ('halve', 50)
    >>> halve
    hook(halve, stages={Stage.DO_BACKWARD})
    """
    if function is None:
        return partial(hook, **options)
    if not is_plain_function(function):
        msg = f"@hook needs a function, got {type(function).__name__}; subclass functrain.Hook for anything else"
        raise TypeError(msg)
    if "name" not in options and not getattr(function, "__name__", "").isidentifier():
        msg = 'a function without a name cannot own a slot; write functrain.hook(function, name="...")'
        raise ValueError(msg)
    initial = options.pop("init", None)
    return FunctionHook(function=function, initial=initial, **options)


def as_hook(value: Any, position: int = 0) -> Hook:
    """Return a hook for what was given to ``fold``: hooks as they are, functions wrapped.

    Raises:
        TypeError: a class, a list or anything else.
    """
    if isinstance(value, Hook):
        return value
    if is_plain_function(value):
        return hook(value)
    raise TypeError(f"argument {position} of fold must be a hook or a function, got {_mistake(value)}")


def _mistake(value: Any) -> str:
    """Say what was given instead of a hook, and what was probably meant."""
    if isinstance(value, type):
        return f"the class {value.__name__}; did you mean {value.__name__}()?"
    kind = type(cast("object", value)).__name__
    if isinstance(value, list | tuple | set | Iterator):
        return f"a {kind}; write fold(*hooks)"
    return f"{kind}; write a function (state, stage, will_skip) -> (state, proceed, loss)"
