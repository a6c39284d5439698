"""What is correct is not flagged: hooks that researchers write, and every hook of the library."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functrain import Hook
from functrain.hooks import LIBRARY
from functrain.testing import check_hook, check_pipeline
from functrain.testing.drawn_hooks import library_hooks
from tests.testing.user_hooks import USER_HOOKS


@pytest.mark.parametrize("hook", USER_HOOKS, ids=lambda hook: hook.name)
def test_a_correct_hook_is_not_flagged(hook: Hook) -> None:
    """No law, the traced and the run ones included, finds anything to say."""
    report = check_hook(hook, max_examples=60)
    assert {row.law.name for row in report if row.status == "not checked"} == set()


def test_there_are_ten() -> None:
    """There are at least ten, no two of one name."""
    assert len({hook.name for hook in USER_HOOKS}) == len(USER_HOOKS) >= 10


@pytest.mark.parametrize("kind", LIBRARY, ids=lambda kind: kind.__name__)
@settings(max_examples=2, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_hook_of_the_library_is_not_flagged(kind: type[Hook], data: st.DataObject) -> None:
    """With drawn configuration, bare or in a combinator."""
    check_hook(data.draw(library_hooks(kind)), max_examples=30)


def test_a_pipeline_of_correct_hooks_is_not_flagged() -> None:
    """What holds of the parts holds of the whole."""
    assert check_pipeline(*USER_HOOKS, max_examples=20).broken == ()
