"""The pytest plugin: ``@pytest.mark.laws(hook)``; imports nothing but pytest before a test is marked.

A class or a function is given by name, ``@pytest.mark.laws(hook=MyHook)``: alone in the brackets of a mark, pytest
takes either for what is decorated.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

MARK = "laws(hook, **options): one test for each law of functrain that says something about a hook; see check_hook"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the option that chooses the profile; and keep the plugin from coming again under its other name."""
    own = pluginmanager.get_name(sys.modules[__name__])
    pluginmanager.set_blocked(next(name for name in ("functrain", __name__) if name != own))
    told = "Hypothesis profile for laws of hooks: dev, ci, thorough, or your own"
    parser.getgroup("functrain").addoption("--functrain-profile", metavar="NAME", help=told)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the mark; and the profiles, where somebody is about to load one with Hypothesis's own option."""
    config.addinivalue_line("markers", MARK)
    if config.getoption("--hypothesis-profile", None):
        from functrain.testing.profiles import register_profiles

        register_profiles()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each law of a marked test."""
    mark = metafunc.definition.get_closest_marker("laws")
    if mark is not None:
        from functrain.testing.marked import expand

        expand(metafunc, mark)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marked test of which pytest cannot make several: it would check nothing."""
    if item.get_closest_marker("laws") is not None and not _laws_of(item):
        pytest.fail("@pytest.mark.laws works on functions and methods of plain classes, not here", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Check the law, and then run the test."""
    mark = pyfuncitem.get_closest_marker("laws")
    if mark is not None:
        from functrain.testing.marked import check

        check(pyfuncitem, mark)
    return (yield)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Show where two states or mappings of a state differ, and nothing of what is the same."""
    if op != "==" or "functrain._state" not in sys.modules:
        return None
    from functrain.testing.comparison import explained

    return explained(left, right)


def _laws_of(item: pytest.Item) -> bool:
    """Tell whether a test is one of those made for a law."""
    return "law" in getattr(getattr(item, "callspec", None), "params", ())
