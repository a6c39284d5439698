"""Import paths, ``module:qualname``: what a file or a snippet may say of code."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from functrain._function_hook import FunctionHook


def path_of(value: Any) -> str:
    """Return the import path of a class or a function.

    Raises:
        ValueError: there is none: it is local, of an interactive session, or its name means something else by now.

    >>> from functrain import EMA
    >>> path_of(EMA)
    'functrain.hooks.ema:EMA'
    """
    path = _place_of(value)
    if resolved(path) is not value:
        raise ValueError(f"{path} is something else by now")
    return path


def _place_of(value: Any) -> str:
    """Return where something was defined."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError(f"{value!r} has no import path")  # noqa: TRY004 - whoever asks wants to know whether it has
    if "<" in name or module == "__main__":
        reason = "local" if "<" in name else "of the main program"
        raise ValueError(f"{module}:{name} cannot be imported: it is {reason}")
    return f"{module}:{name}"


def decorated(function: Any) -> tuple[str, FunctionHook] | None:
    """Return path and hook of a function that was decorated with ``@hook``, so that its name means the hook; or None.

    Raises:
        ValueError: the function has no import path.
    """
    path = _place_of(function)
    found = resolved(path)
    return (path, found) if isinstance(found, FunctionHook) and found.function is function else None


def resolved(path: str) -> Any:
    """Return what an import path means; imports the module, which runs its code.

    Raises:
        ValueError: no import path, or nothing is there; the cause is the error of the import.

    >>> resolved("functrain.hooks.ema:EMA").__name__
    'EMA'
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"{path!r} is no import path; write package.module:name")
    try:
        found: Any = import_module(module)
    except Exception as error:
        raise ValueError(f"cannot import {module}: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module} has no {name}; it has {_public(found)}")
        found = getattr(found, part)
    return found


def _public(module: Any) -> str:
    names = [name for name in dir(module) if not name.startswith("_")]
    return ", ".join(names[:20]) or "no public names"
