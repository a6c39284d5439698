"""What laws are checked on: hooks, and whatever somebody may give in place of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from hypothesis import HealthCheck, Verbosity, find, settings
from hypothesis import strategies as st

from functrain import Hook
from functrain._function_hook import as_hook, is_plain_function
from functrain.testing.drawn_configuration import from_config

Subject: TypeAlias = Hook | st.SearchStrategy[Hook]
QUIET = settings(
    database=None,
    deadline=None,
    derandomize=True,
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType] - an enum of theirs
)
WANTED = "laws are checked on a hook, a pipeline, a class of hooks, or a function that is a hook or makes one"


def subject_of(value: Any) -> Subject:
    """Return what to check: a hook as it is, a function as a hook, of a class hooks with drawn configuration.

    What can be called without arguments is called, and has to return one of these.

    Raises:
        TypeError: anything else.

    >>> from functrain import EMA
    >>> subject_of(EMA), subject_of(lambda: EMA(decay=0.5))
    (from_config(EMA), EMA(decay=0.5))
    """
    if isinstance(value, st.SearchStrategy):
        return cast("st.SearchStrategy[Hook]", value)
    if isinstance(value, type) and issubclass(value, Hook):
        return from_config(value)
    return _hook_of(cast("Any", value))


def _hook_of(value: Any) -> Hook:
    made: Any = value() if makes_a_hook(value) else value
    if isinstance(made, Hook) or is_plain_function(made):
        return as_hook(made)
    raise TypeError(f"{WANTED}; not on {'what it returned, ' if made is not value else ''}{made!r}")


def makes_a_hook(value: Any) -> bool:
    """Tell a function without parameters from a hook function, which has three; a hook is no function.

    >>> makes_a_hook(lambda: None), makes_a_hook(lambda state, stage, will_skip: None), makes_a_hook(Hook())
    (True, False, False)
    """
    if not callable(value) or isinstance(value, Hook | type):
        return False
    return _takes(value) and not _takes(value, "state", "stage", "will_skip")


def _takes(function: Callable[..., Any], *arguments: str) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return True


def example_of(subject: Subject) -> Hook:
    """Return the hook, or the simplest that a strategy draws.

    Raises:
        TypeError: the strategy draws something else.
    """
    if isinstance(subject, Hook):
        return subject
    found: Any = find(subject, lambda _: True, settings=QUIET)
    if not isinstance(found, Hook):
        raise TypeError(f"{WANTED}; {subject!r} draws {found!r}")
    return found
