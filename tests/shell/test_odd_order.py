"""Calls of a shell in an order that makes no sense, and errors where an epoch or a step ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from functrain import EMA, Accumulate, Shell, SkipLimitError, SkipNonFinite, Stage
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import Planned, raising


def averaging() -> Shell:
    """Return a shell in mid-window whose average has been updated."""
    shell = sgd_shell(Weight(), [Accumulate(every=2), EMA(decay=0.5)])
    run(shell, [1.0, 1.0, 1.0])
    return shell


OUTSIDE: dict[str, Callable[[Shell], object]] = {
    "flush": lambda shell: shell.flush(),
    "restore": lambda shell: shell.restore(shell.snapshot()),
    "load_state_dict": lambda shell: shell.load_state_dict(shell.state_dict()),
}


@pytest.mark.parametrize("call", OUTSIDE)
def test_what_replaces_the_state_is_refused_inside_an_open_batch(call: str) -> None:
    """Flush, restore and load would pull the state from under the micro-batch; nothing is done, the batch goes on."""
    shell = averaging()
    with shell.batch():
        with pytest.raises(RuntimeError, match=rf"shell\.{call}\(\) inside an open batch"):
            OUTSIDE[call](shell)
        shell.update(shell._driver.applier.models.modules["main"](3.0))
    assert applied(shell) == 3.0
    assert (shell.state.clock.step, shell.state.clock.epoch) == (2, 0)


@pytest.mark.parametrize("call", OUTSIDE)
def test_after_its_update_a_batch_is_over(call: str) -> None:
    """Behind ``update`` the same calls are fine, also before the block is left."""
    shell = averaging()
    with shell.batch():
        shell.update(shell._driver.applier.models.modules["main"](3.0))
        OUTSIDE[call](shell)
    run(shell, [1.0, 1.0])
    assert applied(shell) == 4.0


def test_batches_made_in_advance_do_not_nest() -> None:
    """Which batch is open is known when it is entered, not when it is made."""
    shell = sgd_shell(model := Weight(), [])
    first, second = shell.batch(), shell.batch()
    with first:
        with pytest.raises(RuntimeError, match="inside another batch"):
            second.__enter__()
        shell.update(model(2.0))
    with second:
        shell.update(model(1.0))
    assert applied(shell) == 3.0


def test_a_batch_made_in_advance_is_refused_inside_an_average() -> None:
    """The model holds averaged weights there, whenever the batch was made."""
    shell = averaging()
    made = shell.batch()
    with shell.averaged(), pytest.raises(RuntimeError, match=r"inside shell\.averaged"):
        made.__enter__()


def test_an_error_in_a_flush_ends_the_epoch_all_the_same() -> None:
    """The window is gone, so nothing of the epoch is left to be flushed again."""
    shell = sgd_shell(Weight(), [Accumulate(every=2), raising(Stage.DO_OPTIMIZER_STEP, fuse := [])])
    run(shell, [1.0, 1.0, 1.0])
    fuse.append(Planned())
    with pytest.raises(Planned):
        shell.flush()
    assert (shell.state.clock.epoch, shell.state.clock.epoch_batch) == (1, 0)


def test_a_skip_limit_in_a_flush_ends_the_epoch_all_the_same() -> None:
    """A skip too many is told after the epoch has ended."""
    shell = sgd_shell(Weight(), [Accumulate(every=2), SkipNonFinite(max_consecutive=0)])
    step(shell, float("nan"))
    with pytest.raises(SkipLimitError):
        shell.flush()
    assert (shell.state.clock.epoch, shell.state.clock.epoch_batch) == (1, 0)


@pytest.mark.parametrize("error", [Planned, KeyboardInterrupt])
@pytest.mark.parametrize("place", [0, 90])
def test_an_executed_step_is_seen_by_every_hook(place: int, error: type[BaseException]) -> None:
    """A hook that raises after the step hides it from none behind it: clock and average count alike."""
    bomb = raising(Stage.AFTER_OPTIMIZER_STEP, fuse := [], priority=place)
    shell = sgd_shell(Weight(), [bomb, EMA(decay=0.5)])
    fuse.append(error())
    with pytest.raises(error) as caught:
        step(shell, 1.0)
    assert "raised by hook 'bomb' at AFTER_OPTIMIZER_STEP" in caught.value.__notes__
    assert shell.state.clock.step == shell.state.hooks["ema"]["completed"] == 1


def test_of_two_hooks_that_raise_after_the_step_the_first_is_raised() -> None:
    """The second one is named in a note."""
    fuses: list[list[BaseException]] = [[Planned("one")], [Planned("two")]]
    bombs = [raising(Stage.AFTER_OPTIMIZER_STEP, fuse, name=f"bomb{n}") for n, fuse in enumerate(fuses)]
    shell = sgd_shell(Weight(), [*bombs, EMA(decay=0.5)])
    with pytest.raises(Planned, match="one") as caught:
        step(shell, 1.0)
    assert any("bomb1" in note and "two" in note for note in caught.value.__notes__)
    assert shell.state.hooks["ema"]["completed"] == 1
