"""The protocol of `with shell.batch(): shell.update(loss)`, and what is refused of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import EMA, Accumulate, ClipNorm, Shell, SkipLimitError, SkipNonFinite, Stage
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import half, scaling, vetoing
from tests.shell.records import differences, record


def leave(shell: Shell, *, last: bool = False) -> None:
    """Open a micro-batch and leave it without an update."""
    with shell.batch(last=last):
        pass


def family() -> list[Any]:
    """Return hooks of most families."""
    return [half(), ClipNorm(max_norm=4.0), SkipNonFinite(max_consecutive=None), EMA(decay=0.5)]


@given(every=st.integers(1, 3), left=st.lists(st.booleans(), max_size=10), last=st.booleans())
def test_leaving_without_an_update_is_a_drop(every: int, left: list[bool], last: bool) -> None:
    """Whichever micro-batches are left, at an epoch's end too: bitwise the run in which a hook drops them."""
    places = frozenset(place for place, each in enumerate(left) if each)
    drop = vetoing(places, stage=Stage.DO_BACKWARD)
    silent = sgd_shell(Weight(), [Accumulate(every=every), *family()])
    dropping = sgd_shell(Weight(), [Accumulate(every=every), *family(), drop])
    for place, each in enumerate(left):
        ends = last and place == len(left) - 1
        leave(silent, last=ends) if each else step(silent, float(place), last=ends)
        step(dropping, float(place), last=ends)
    found, right = record(silent), record(dropping)
    told = [path for path in differences(found, right) if "veto" not in path and "loss" not in path]
    assert told == []
    assert silent.state.clock.batch == len(left)


def test_a_left_micro_batch_takes_its_place() -> None:
    """K=3, gradients 1, nothing, 5: one step of 3."""
    shell = sgd_shell(Weight(), Accumulate(every=3))
    step(shell, 1.0)
    leave(shell)
    step(shell, 5.0)
    assert (applied(shell), shell.state.clock.step, shell.state.clock.batch) == (3.0, 1, 3)


def test_leaving_all_of_a_window_is_a_skip_that_no_hook_is_blamed_for() -> None:
    """Nothing entered: one skip per window; limits are those of hooks that vetoed, so none is raised."""
    shell = sgd_shell(Weight(), [Accumulate(every=2), SkipNonFinite(max_consecutive=0)])
    for _ in range(6):
        leave(shell)
    assert (shell.state.clock.skipped, shell.state.clock.step) == (3, 0)
    with pytest.raises(SkipLimitError):
        run(shell, [float("nan")] * 2)


def closed(shell: Shell) -> Any:
    """Return a micro-batch that was left."""
    opened = shell.batch()
    with opened:
        shell.update(module(shell)(1.0))
    return opened


def module(shell: Shell) -> Any:
    """Return the module."""
    return shell._driver.applier.models.modules["main"]


def update_twice(shell: Shell) -> None:
    """Call update a second time in one micro-batch."""
    with shell.batch():
        shell.update(module(shell)(1.0))
        shell.update(module(shell)(1.0))


def nest(shell: Shell) -> None:
    """Open a micro-batch in another one."""
    with shell.batch(), shell.batch():
        pass


def enter_twice(shell: Shell) -> None:
    """Enter a micro-batch again after it was left."""
    with closed(shell):
        pass


MISUSES: dict[str, tuple[Callable[[Shell], Any], str, float]] = {
    "outside": (lambda shell: shell.update(module(shell)(1.0)), r"belongs inside `with shell\.batch\(\):`", 0.0),
    "not entered": (lambda shell: shell.batch() and shell.update(module(shell)(1.0)), "belongs inside", 0.0),
    "after": (lambda shell: closed(shell) and shell.update(module(shell)(1.0)), "belongs inside", 1.0),
    "twice": (update_twice, r"called twice in one batch\(\)", 1.0),
    "nested": (nest, r"inside another batch\(\)", 0.0),
    "entered twice": (enter_twice, r"entered twice.*shell\.batch\(\)", 1.0),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_a_runtime_error_that_says_what_to_do(misuse: str) -> None:
    """Refused, what had been done stays done, and the next micro-batch is as always."""
    act, match, done = MISUSES[misuse]
    shell = sgd_shell(Weight(), half())
    with pytest.raises(RuntimeError, match=match):
        act(shell)
    assert (applied(shell), shell.state.clock.step) == (done, int(done))
    step(shell, 2.0)
    assert (applied(shell), scaling(shell)[1]) == (done + 2.0, int(done) + 1)
    assert not torch.is_autocast_enabled("cpu")


def test_after_a_failed_update_the_same_batch_cannot_go_on() -> None:
    """An update that raised has ended its micro-batch: another update in it is refused, the next batch trains."""
    shell = sgd_shell(Weight(), [])
    with shell.batch():
        with pytest.raises(TypeError):
            shell.update(None)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError):
            shell.update(module(shell)(1.0))
    assert (applied(shell), shell.state.clock.batch) == (0.0, 0)
    step(shell, 2.0)
    assert (applied(shell), shell.state.clock.batch) == (2.0, 1)


def test_hooks_see_the_batch() -> None:
    """What is given to batch() is `state.batch` for hooks, an empty mapping where nothing is given."""
    seen: list[Any] = []
    shell = sgd_shell(Weight(), Accumulate(every=1, weight=lambda batch: seen.append(dict(batch)) or 2.0))
    with shell.batch({"tokens": 7}):
        shell.update(module(shell)(1.0))
    leave(shell)
    assert seen == [{"tokens": 7}, {}]
