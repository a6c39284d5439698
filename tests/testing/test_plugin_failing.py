"""The pytest plugin on a hook that fails: no law of it passes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.testing.own_project import python, write_project

FAILING = """
import pytest


def fails(state, stage, will_skip):
    raise RuntimeError("broken for good")


@pytest.mark.laws(hook=fails, laws=["L1", "L2"], max_examples=10)
def test_with_the_contract():
    ...


@pytest.mark.laws(hook=fails, laws=["L2"], max_examples=10)
def test_without_it():
    ...
"""


def test_no_law_of_a_hook_that_fails_passes(tmp_path: Path) -> None:
    """The contract's own test tells the failure, others are skipped beside it, and fail where it is not asked for."""
    (write_project(tmp_path) / "test_own.py").write_text(FAILING, encoding="utf-8")
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = python(tmp_path, "-m", "pytest", "-p", "functrain.testing.plugin", "-v", **plain)
    found = dict(re.findall(r"^test_own.py::(\S+\[.+?\]) (\w+)", done.stdout, flags=re.MULTILINE))
    assert found == {
        "test_with_the_contract[L1 contract]": "FAILED",
        "test_with_the_contract[L2 purity]": "SKIPPED",
        "test_without_it[L2 purity]": "FAILED",
    }, done.stdout
    assert done.stdout.count("the hook failed: RuntimeError: broken for good") >= 2
