"""The modules that are documented, found so that none can be forgotten."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

import functrain

COMMAND_LINE = "functrain.demo"
"""A program, not an interface: it exports nothing."""

GUIDE = "functrain.guide"
"""Pages: each module is one docstring."""


def public_modules() -> list[str]:
    """Return the names of the packages that are public, and of the pages."""
    found = pkgutil.walk_packages(functrain.__path__, "functrain.")
    wanted = [each.name for each in found if each.ispkg or each.name.startswith(f"{GUIDE}.")]
    return ["functrain", *(name for name in wanted if name != COMMAND_LINE)]


def documented(module: ModuleType) -> list[str]:
    """Return the public names of a module; a page has none."""
    return sorted(getattr(module, "__all__", []))


def module_of(name: str) -> ModuleType:
    """Import a module."""
    return import_module(name)
