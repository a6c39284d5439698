"""Hooks that are broken on purpose: each is caught by the law that it breaks, in at most 200 scenes."""

from __future__ import annotations

import pytest

from functrain.testing import LawViolation, check_hook
from functrain.testing.laws import LAWS
from tests.testing.broken import contracts, families, forms, purity
from tests.testing.broken.making import Broken

CASES: dict[str, Broken] = {**contracts.CASES, **purity.CASES, **forms.CASES, **families.CASES}


def test_there_are_many() -> None:
    """There are at least thirty, and no two files use one name."""
    assert len(CASES) == sum(len(each.CASES) for each in (contracts, purity, forms, families))
    assert len(CASES) >= 30


@pytest.mark.parametrize("case", CASES)
def test_a_broken_hook_is_caught_by_its_law(case: str) -> None:
    """The law that is broken finds a scene that shows it, among 200 at most."""
    broken = CASES[case]
    with pytest.raises(LawViolation) as violation:
        check_hook(broken.make(), laws=[law for law in LAWS if law.name == broken.law], max_examples=200, seed=0)
    report = violation.value.report
    assert report is not None
    assert report.broken == (broken.law,)
    assert report[broken.law].examples <= 200
