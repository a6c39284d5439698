from __future__ import annotations

import re

import pytest

from functrain import Stage
from functrain._state import FIELDS, STATIC
from functrain.testing import laws
from tests.public_modules import module_of


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
