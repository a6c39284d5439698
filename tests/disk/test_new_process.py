"""What was saved goes on in another process as if nothing had happened, bit by bit."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import functrain
from functrain.testing.differences import unlike
from functrain.testing.events import schedules
from functrain.testing.resuming import recorded
from functrain.testing.shell_run import ShellRun
from tests.disk.process import Elsewhere, packed, unpacked
from tests.disk.runs import (
    from_pure_to_shell,
    from_shell_to_pure,
    gone_on,
    resumed,
    resumed_purely,
    run_of,
    saved,
    shell_after,
    straight,
)
from tests.shell.pipelines import optimizers, pipelines, runs
from tests.shell.records import differences
from tests.testing.own_project import ROOT, python
from tests.testing.runs import partial_pipelines

NUMBERS = count()
again = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
pure_events = schedules(events=["tiny", "spike", "inf", "nan", "flush"])
pure_optimizers = st.sampled_from(["sgd", "adamw"])


@again
@given(hooks=pipelines(), optimizer=optimizers, kinds=runs, data=st.data())
def test_a_shell_goes_on(
    hooks: Any, optimizer: str, kinds: list[str], data: st.DataObject, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """At any batch, any pipeline of library hooks, any pattern of overflows, spikes, drops and flushes."""
    cut = data.draw(st.integers(0, len(kinds)))
    path = saved(tmp_path / f"{next(NUMBERS)}", hooks, optimizer, kinds[:cut])
    after = elsewhere(resumed, path, hooks, optimizer, kinds[cut:], cut)
    assert differences(straight(hooks, optimizer, kinds), after) == []


@again
@given(hooks=partial_pipelines(), optimizer=pure_optimizers, events=pure_events, data=st.data())
def test_a_pure_state_goes_on(
    hooks: Any, optimizer: str, events: list[Any], data: st.DataObject, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """The same in the pure engine."""
    cut = data.draw(st.integers(0, len(events)))
    training = run_of(hooks, optimizer)
    functions, first = training.start()
    state = gone_on(functions, first, training, events[:cut], 0)
    path = functrain.save(tmp_path / f"{next(NUMBERS)}", state, pipeline=training.pipeline)
    after = elsewhere(resumed_purely, path, hooks, optimizer, events[cut:], cut)
    assert list(unlike(gone_on(functions, state, training, events[cut:], cut), after, "state")) == []


@again
@given(hooks=partial_pipelines(), optimizer=pure_optimizers, events=pure_events, data=st.data())
def test_a_run_changes_its_interpreter_on_disk(
    hooks: Any, optimizer: str, events: list[Any], data: st.DataObject, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """From a shell to the pure engine, and from there to a shell: the same as over the bridges alone."""
    cut = data.draw(st.integers(0, len(events)))
    training = run_of(hooks, optimizer)
    functions, _ = training.start()
    shell = ShellRun(training)
    for place, event in enumerate(events[:cut]):
        shell.happen(event, place)
    there = functrain.save(tmp_path / f"{next(NUMBERS)}", shell.shell)
    state = shell.shell.to_pure()
    after = elsewhere(from_shell_to_pure, there, hooks, optimizer, events[cut:], cut)
    assert list(unlike(gone_on(functions, state, training, events[cut:], cut), after, "state")) == []
    back = functrain.save(tmp_path / f"{next(NUMBERS)}", state)
    assert (
        list(
            unlike(
                shell_after(state, training, events[cut:], cut),
                elsewhere(from_pure_to_shell, back, hooks, optimizer, events[cut:], cut),
                "shell",
            )
        )
        == []
    )
    assert recorded(shell)  # the run that was saved is still there


@pytest.mark.parametrize("cut", [1, 4])
def test_a_fresh_process_goes_on(cut: int, tmp_path: Path) -> None:
    """In a process that has done nothing before, started for this alone."""
    kinds = ["plain", "overflow", "plain", "spike", "plain", "left", "plain"]
    hooks = functrain.Accumulate(every=2) + functrain.ClipNorm(max_norm=0.5) + functrain.EMA(decay=0.5)
    path = saved(tmp_path / "one", hooks, "adamw", kinds[:cut])
    call = packed((resumed, (path, hooks, "adamw", kinds[cut:], cut)))
    program = f"from tests.disk.process import *; f, a = unpacked('{call}'); print(packed(f(*a)))"
    done = python(ROOT, "-c", program, OMP_NUM_THREADS="1")  # more threads would round otherwise
    assert done.returncode == 0, done.stderr
    assert differences(straight(hooks, "adamw", kinds), unpacked(done.stdout.splitlines()[-1])) == []
