"""Packages whose names are imported when the first of them is asked for; itself it imports nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def lazily(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package: the first name imports its module ``_public``, with all.

    ``__dir__`` lists the public names and no others.

    >>> getter, names = lazily("functrain")
    >>> getter("EMA").__name__, "EMA" in names()
    ('EMA', True)
    """
    here = vars(sys.modules[package])

    def load() -> None:
        found = vars(import_module(f"{package}._public"))  # of a circular import: as far as it has come
        here.update({name: found[name] for name in found.get("__all__", ()) if name in found})

    def getter(name: str) -> object:
        if name == "__all__" or not name.startswith("_"):
            load()
            if name == "__all__":
                return import_module(f"{package}._public").__all__
            if name in here:
                return here[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])

    def names() -> list[str]:
        return sorted(import_module(f"{package}._public").__all__)

    return getter, names
