from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

from tests.public_modules import GUIDE, documented, module_of, public_modules

MODULES = public_modules()
PACKAGES = [name for name in MODULES if not name.startswith(GUIDE)]

NOT_EXPORTED = {"TYPE_CHECKING", "lazily", "Hook", "Law"}
"""What the packages themselves need: how they load, and the types of their lists."""


def names_of(packages: list[str]) -> list[Any]:
    """Return a parameter for each public name of some packages."""
    pairs = [(package, name) for package in packages for name in documented(module_of(package))]
    return [pytest.param(package, name, id=f"{package}.{name}") for package, name in pairs]


def text_of(package: str, name: str) -> str:
    """Return what documents a name: its own docstring, or, of data, that of the package, which must mention it."""
    value = getattr(module_of(package), name)
    if isinstance(value, type | ModuleType) or inspect.isroutine(value):
        return value.__doc__ or ""
    around = module_of(package).__doc__ or ""
    assert name in around, f"{name} is data, which has no docstring of its own; show it in that of {package}"
    return around


def test_the_packages_are_found() -> None:
    """The list that all of this goes through holds the packages one would look for."""
    assert {"functrain", "functrain.pure", "functrain.show", "functrain.disk", "functrain.testing"} <= set(MODULES)


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_is_what_is_documented(package: str) -> None:
    """A package lists the names that are documented, each of which is there, and no others."""
    module = module_of(package)
    assert dir(module) == documented(module) != []
    assert all(hasattr(module, name) for name in dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_forgotten(package: str) -> None:
    """What a package imports without exporting it are its own modules, and the few that it needs itself."""
    module = module_of(package)
    found = {name for name, value in vars(module).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    assert found - set(documented(module)) <= NOT_EXPORTED


@pytest.mark.parametrize(("package", "name"), names_of(PACKAGES))
def test_every_name_has_an_example(package: str, name: str) -> None:
    """A public name is documented, with an example, which pytest runs where it stands."""
    assert ">>>" in text_of(package, name)


@pytest.mark.parametrize("page", [name for name in MODULES if name.startswith(f"{GUIDE}.")])
def test_a_page_is_a_docstring(page: str) -> None:
    """A page of the guide holds text with examples, and nothing else."""
    module = module_of(page)
    assert ">>>" in (module.__doc__ or "")
    assert not [name for name in vars(module) if name[0].isalpha()]  # pytest adds names of another kind
