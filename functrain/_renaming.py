"""The same hook under another name or at another place in the order."""

from __future__ import annotations

from typing import Any

from functrain._fold import Pipeline
from functrain._function_hook import FunctionHook, as_hook
from functrain._hook import Hook
from functrain._wrapper import Wrapper, each_member


def named(name: str, hook: Any) -> Any:
    """Return the same hook under another name, and so with a slot of its own.

    Raises:
        TypeError: a pipeline, whose members have names of their own.
        pydantic.ValidationError: a name that is no identifier.

    >>> from functrain import EMA
    >>> named("slow", EMA(decay=0.9999)).name
    'slow'
    """
    if isinstance(hook, Pipeline):
        msg = f"cannot name a pipeline; name its members: {[each.name for each in hook]}"
        raise TypeError(msg)
    inner = FunctionHook(function=hook, name=name) if not isinstance(hook, Hook) and callable(hook) else as_hook(hook)
    return _changed(inner, name=name)


def prioritized(priority: int, hook: Any) -> Any:
    """Return the same hook with another place in the order; lower runs first.

    >>> from functrain import EMA
    >>> prioritized(60, EMA()).priority
    60
    """
    return each_member(hook, lambda inner: _changed(inner, priority=priority))


def _changed(hook: Hook, **changes: Any) -> Hook:
    """Return a copy with validated changes, in a wrapper also of what it wraps: the slot is found by the inner name."""
    Hook(**changes)
    if isinstance(hook, Wrapper):
        changes["inner"] = _changed(hook.inner, **changes)
    return hook.model_copy(update=changes)
