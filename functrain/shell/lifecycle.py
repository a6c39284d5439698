"""Hooks that hold resources: entered in order, left in reverse, exception-safe."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from functrain._fold import Pipeline


def entered_hooks(pipeline: Pipeline) -> ExitStack:
    """Enter the hooks that are context managers; if one raises, those before it are left again."""
    with ExitStack() as stack:
        for each in pipeline:
            if (enter := getattr(each, "__enter__", None)) is not None:
                enter()
            stack.push(_leaver(each))
        return stack.pop_all()
    raise AssertionError  # pragma: no cover - for the type checker: an ExitStack may swallow exceptions


def _leaver(hook: Any) -> Any:
    """Return what leaves a hook: its ``__exit__``, else its ``close``; neither can swallow an exception."""

    def leave(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if (leave_hook := getattr(hook, "__exit__", None)) is not None:
            leave_hook(kind, error, trace)
        elif (close := getattr(hook, "close", None)) is not None:
            close()
        return False

    return leave


def close_hooks(pipeline: Pipeline) -> None:
    """Call ``close`` in reverse order, all of them even if one raises."""
    with ExitStack() as stack:
        for each in pipeline:
            if (close := getattr(each, "close", None)) is not None:
                stack.callback(close)
