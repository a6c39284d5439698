from __future__ import annotations

import doctest
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from functrain import Stage
from functrain._state import FIELDS, STATIC
from functrain.testing import laws
from tests.public_modules import module_of
from tests.testing.own_project import python


@pytest.fixture(scope="module")
def semantics() -> str:
    """Return the page on what an update means."""
    return module_of("functrain.guide.semantics").__doc__ or ""


def test_the_stage_table_is_complete(semantics: str) -> None:
    """Every stage has a row, in the order in which a run meets them."""
    assert re.findall(r"^\| `([A-Z_]+)` \|", semantics, flags=re.MULTILINE) == [stage.name for stage in Stage]


def test_every_field_is_in_a_row(semantics: str) -> None:
    """Every field of the state has a row that says who writes it."""
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", semantics, flags=re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"\w+", row)] == [*FIELDS, *STATIC]


def test_every_numbered_law_is_in_a_row(semantics: str) -> None:
    """Every law with a number has a row under a name that the reports use."""
    named = {law.name for law in laws.LAWS}
    rows = re.findall(r"^\| (L\d+ [^|]+) \|", semantics, flags=re.MULTILINE)
    assert [row.split()[0] for row in rows] == [f"L{place}" for place in range(1, 15)]
    assert set(rows) <= named


@pytest.fixture(scope="module")
def coming_from() -> str:
    """Return the page for those who come from elsewhere."""
    return module_of("functrain.guide.coming_from").__doc__ or ""


def start_of(page: str) -> str:
    """Return what the examples of a page begin with, as a program."""
    return "".join(each.source for each in doctest.DocTestParser().get_examples(page.split("\n## ", maxsplit=1)[0]))


@pytest.mark.parametrize(
    "package", ["lightning", "accelerate", "optax", pytest.param("nvalchemi", marks=pytest.mark.peer)]
)
def test_their_code_runs(package: str, coming_from: str, tmp_path: Path) -> None:
    """What the page shows as the code of another package runs there as it stands."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    blocks = re.findall(r"^```python\n(.*?)^```$", coming_from, flags=re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if f"import {package}" in block or f"from {package}" in block)
    done = python(tmp_path, "-c", start_of(coming_from) + code)
    assert done.returncode == 0, done.stderr
