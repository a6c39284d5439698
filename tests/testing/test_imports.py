"""What imports what: functrain needs neither Hypothesis nor pytest, and nothing before a name is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import types

import pytest

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"hypothesis", "pytest", "_pytest"}:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> str:
    """Run code in a fresh interpreter, and return what it prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_functrain_works_without_hypothesis_and_pytest() -> None:
    """All of it but functrain.testing."""
    code = BLOCKER + "import functrain, functrain.pure, functrain.shell\nprint(len(functrain.fold(functrain.EMA())))"
    assert run(code) == "1"


def test_the_laws_say_what_they_need() -> None:
    """functrain.testing names Hypothesis, and how to get it."""
    code = (
        BLOCKER + "try:\n    from functrain.testing import check_hook\nexcept ImportError as error:\n    print(error)"
    )
    assert "functrain[testing]" in run(code)


def test_functrain_does_not_import_the_laws() -> None:
    """They are imported by who asks for them."""
    names = run("import sys, functrain; functrain.EMA; print(*sys.modules)").split()
    assert {"functrain", "functrain.hooks.ema"} <= {*names}
    assert not [name for name in names if name.startswith(("functrain.testing", "hypothesis"))]


def test_without_a_bar_nobody_asks_for_widgets() -> None:
    """``tqdm.auto`` warns in a notebook without ipywidgets, so it is imported where a bar is shown."""
    code = "import sys, functrain, functrain.pure as p; functrain.fit, p.sweep; print('tqdm.auto' in sys.modules)"
    assert run(code) == "False"


def test_a_package_imports_nothing_before_a_name_is_asked_for() -> None:
    """A plugin inside the package costs no torch and no Hypothesis."""
    names = {name.partition(".")[0] for name in run("import sys, functrain.testing; print(*sys.modules)").split()}
    assert "functrain" in names
    assert not names & {"torch", "hypothesis", "pydantic", "optree", "numpy", "pytest"}


@pytest.mark.parametrize("package", ["functrain", "functrain.testing"])
def test_every_name_is_there_whichever_comes_first(package: str) -> None:
    """By attribute, by import, with a star, and in ``dir``; one that is not there is an AttributeError."""
    star = f"from {package} import *; import {package} as p; print(set(p.__all__) - set(globals()))"
    assert run(star) == "set()"
    assert run(f"import {package} as p; print(set(p.__all__) - set(dir(p)))") == "set()"
    assert run(f"import {package} as p; print(hasattr(p, 'no_such_name'), hasattr(p, '_nor_this'))") == "False False"


@pytest.mark.parametrize("package", ["functrain", "functrain.testing"])
def test_no_name_is_hidden_by_a_module(package: str) -> None:
    """A module of the name of a function would stand in its place, were it imported before."""
    found = importlib.import_module(package)
    for name in found.__all__:
        is_module = isinstance(getattr(found, name), types.ModuleType)
        assert is_module == (importlib.util.find_spec(f"{package}.{name}") is not None), name
