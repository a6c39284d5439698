"""Pipelines of every hook of the library, configured anyhow, from disk and on."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import functrain
from functrain import Shell, SkipLimitError
from functrain.testing import pipelines
from tests.shell.pipelines import optimizers, run, runs, shell_of
from tests.shell.records import differences, record

NUMBERS = count()
again = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def ran(hooks: Any, optimizer: str, kinds: list[str]) -> Shell:
    """Return a shell after a run; a pipeline that this model cannot have, or that gives up, is not drawn."""
    try:
        shell = shell_of(hooks, optimizer)
        run(shell, kinds)
    except (ValueError, KeyError, TypeError, SkipLimitError):
        assume(condition=False)
        raise
    return shell


@again
@given(hooks=pipelines(max_synthetic=0), optimizer=optimizers, kinds=runs, data=st.data())
def test_any_pipeline_goes_on(
    hooks: Any, optimizer: str, kinds: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    """Saved anywhere, and loaded into a shell on other weights: bitwise the run without an interruption."""
    cut = data.draw(st.integers(0, len(kinds)))
    straight = record(ran(hooks, optimizer, kinds))
    path = functrain.save(tmp_path / f"{next(NUMBERS)}", ran(hooks, optimizer, kinds[:cut]))
    resumed = shell_of(hooks, optimizer, seed=5)
    resumed.load(path)
    run(resumed, kinds[cut:], cut)
    assert differences(straight, record(resumed)) == []
