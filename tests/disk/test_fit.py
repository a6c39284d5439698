"""``fit`` that is saved on its way, interrupted, and resumed: bitwise the run that nobody interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import functrain
from functrain import Checkpoint, CheckpointError, Shell, Stage, TrainState, fit, latest
from functrain.disk import Background
from tests.shell.pipelines import pipelines, shell_of
from tests.shell.records import differences, record

again = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
EPOCHS = 3


class Stop(Exception):  # noqa: N818 - it is no error
    """The end of a process, as far as a test can have one."""


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss."""
    return model(batch[0]).float().square().mean()


def shuffled(*, own: bool) -> DataLoader[Any]:
    """Return a loader that deals seven batches anew each epoch, by a generator of its own or by torch's."""
    data = torch.randn(14, 3, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(5) if own else None
    return DataLoader(TensorDataset(data), batch_size=2, shuffle=True, generator=generator)


class Shards:
    """A loader that knows where it is, as those do that have a ``state_dict``."""

    def __init__(self) -> None:
        self.order, self.place = 0, 0

    def __iter__(self) -> Iterator[Any]:
        """Deal what is left of an epoch, and go on to the next."""
        generator = torch.Generator().manual_seed(self.order)
        batches = [torch.randn(2, 3, generator=generator) for _ in range(7)]
        while self.place < len(batches):
            self.place += 1
            yield [batches[self.place - 1]]
        self.order, self.place = self.order + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return where it is."""
        return {"order": self.order, "place": self.place}

    def load_state_dict(self, stored: dict[str, int]) -> None:
        """Go there."""
        self.order, self.place = stored["order"], stored["place"]


LOADERS: dict[str, Any] = {
    "own generator": lambda: shuffled(own=True),
    "torch's generator": lambda: shuffled(own=False),
    "stateful": Shards,
    "list": lambda: [[torch.randn(2, 3, generator=torch.Generator().manual_seed(n))] for n in range(7)],
}


def stopping(after: int) -> Any:
    """Return what counts micro-batches, and ends the process after so many."""
    seen: list[int] = []

    def look(_state: TrainState, _stage: Stage) -> None:
        seen.append(1)
        if len(seen) == after:
            raise Stop

    return functrain.observe("stop", look, stages=Stage.BEFORE_BATCH)


def shell_and(hooks: Any, after: int) -> Shell:
    """Return a shell of some hooks that ends after so many micro-batches."""
    return shell_of(functrain.fold(*hooks, stopping(after)))


@again
@given(
    hooks=pipelines(),
    loader=st.sampled_from(sorted(LOADERS)),
    after=st.integers(2, 7 * EPOCHS),
    every=st.integers(1, 4),
    each_epoch=st.booleans(),
    background=st.booleans(),
)
def test_an_interrupted_fit_is_the_uninterrupted_one(
    hooks: Any, loader: str, after: int, every: int, each_epoch: bool, background: bool, tmp_path_factory: Any
) -> None:
    """Any loader, any moment, any rhythm of saving: what follows the latest checkpoint is the same, bit by bit."""
    folder: Path = tmp_path_factory.mktemp("fit")
    straight, stopped, resumed = (shell_and(hooks, count) for count in (10**9, after, 10**9))
    torch.manual_seed(3)
    fit(straight, LOADERS[loader](), loss_of, EPOCHS, validate=lambda _model: 1.0, progress=False)
    torch.manual_seed(3)
    saving = Checkpoint(folder, every=every, each_epoch=each_epoch, keep=2, background=background)
    with pytest.raises(Stop):
        fit(stopped, LOADERS[loader](), loss_of, EPOCHS, validate=lambda _m: 1.0, progress=False, checkpoint=saving)
    torch.manual_seed(4 if (found := latest(folder)) else 3)
    fit(resumed, LOADERS[loader](), loss_of, EPOCHS, validate=lambda _model: 1.0, progress=False, resume=found)
    assert differences(record(straight), record(resumed)) == []
    assert len(names_in(folder)) <= 2


def told(shell: Shell, **options: Any) -> list[str]:
    """Return the names of the checkpoints of a run of two epochs of three batches."""
    batches = [[torch.ones(2, 3)]] * 3
    fit(shell, batches, loss_of, 2, progress=False, **options)
    return names_in(options["checkpoint"].folder)


def names_in(folder: Path) -> list[str]:
    """Return the names of what is no file: checkpoints, and the folder of the best."""
    return sorted(each.name for each in folder.iterdir() if each.is_dir())


def test_steps_are_saved_on_the_edge_of_the_count(tmp_path: Path) -> None:
    """Every second step, once, also where two micro-batches make a step and an epoch ends in mid-window."""
    names = told(shell_of(functrain.Accumulate(every=2)), checkpoint=Checkpoint(tmp_path, every=2))
    assert names == ["step00000002-batch00000003-epoch0000", "step00000004-batch00000006-epoch0001"]


def test_epochs_are_saved_at_their_end(tmp_path: Path) -> None:
    """After the validation, with the clock in the next epoch."""
    names = told(shell_of([]), checkpoint=Checkpoint(tmp_path, each_epoch=True))
    assert names == ["step00000003-batch00000003-epoch0001", "step00000006-batch00000006-epoch0002"]


@pytest.mark.parametrize(("largest", "expected"), [(True, 2), (False, 3)])
@pytest.mark.parametrize("background", [False, True])
def test_the_best_is_kept_beside(largest: bool, expected: int, background: bool, tmp_path: Path) -> None:
    """The best validation so far, also over a resume; NaN is never the best."""
    numbers = iter([float("nan"), 5.0, 1.0, 3.0])
    batches = [[torch.ones(2, 3)]] * 3
    for shell, epochs in ((shell_of([]), 2), (shell_of([]), 4)):
        saving = Checkpoint(tmp_path, each_epoch=True, best="score", largest=largest, keep=1, background=background)
        fit(
            shell,
            batches,
            loss_of,
            epochs,
            validate=lambda _model: {"score": next(numbers)},
            progress=False,
            checkpoint=saving,
            resume=latest(tmp_path),
        )
    (best,) = (tmp_path / "best").iterdir()
    assert functrain.load(best).clock["epoch"] == expected
    assert latest(tmp_path / "best") == best
    shell_of([]).load(best)


def test_a_best_that_nobody_measures_is_told(tmp_path: Path) -> None:
    """The error lists what there is."""
    with pytest.raises(KeyError, match=r"no number 'accuracy'.*\['total_loss'\]"):
        told(shell_of([]), checkpoint=Checkpoint(tmp_path, best="accuracy"), validate=lambda _model: 1.0)


def kicking(number: signal.Signals) -> Any:
    """Return a hook that sends this process a signal in the fifth micro-batch."""

    def kick(state: TrainState, _stage: Stage) -> None:
        if state.clock.batch == 4:
            os.kill(os.getpid(), number)

    return functrain.observe("kick", kick, stages=Stage.BEFORE_BACKWARD)


@pytest.mark.parametrize("background", [False, True])
def test_ctrl_c_saves_and_then_interrupts(background: bool, tmp_path: Path) -> None:
    """After the micro-batch that it came in; handlers and threads are as before."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        told(shell_of(kicking(signal.SIGINT)), checkpoint=Checkpoint(tmp_path, background=background))
    assert names_in(tmp_path) == ["step00000005-batch00000005-epoch0001"]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert not [each for each in threading.enumerate() if each.name.startswith("functrain")]


def test_sigterm_saves_and_then_ends(tmp_path: Path) -> None:
    """It does what it would have done: here a handler of the user's own raises."""

    def ended(_number: int, _frame: Any) -> None:
        raise Stop

    before = signal.signal(signal.SIGTERM, ended)
    try:
        with pytest.raises(Stop):
            told(shell_of(kicking(signal.SIGTERM)), checkpoint=Checkpoint(tmp_path))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert names_in(tmp_path) == ["step00000005-batch00000005-epoch0001"]


def test_without_a_checkpoint_ctrl_c_is_at_once(tmp_path: Path) -> None:
    """Nobody catches it."""
    shell = shell_of(kicking(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        fit(shell, [[torch.ones(2, 3)]] * 7, loss_of, 1, progress=False)
    assert shell.state.clock.batch == 4


def test_in_another_thread_signals_are_left_alone(tmp_path: Path) -> None:
    """Where they cannot be caught, the run is saved all the same."""
    found: list[str] = []
    work = threading.Thread(
        target=lambda: found.extend(told(shell_of([]), checkpoint=Checkpoint(tmp_path, each_epoch=True)))
    )
    work.start()
    work.join()
    assert len(found) == 2


def test_stages_that_were_told_are_not_told_again(tmp_path: Path) -> None:
    """A run that resumes in an epoch goes on in it; one that resumes between two begins the next."""
    seen: list[str] = []
    stages = {Stage.BEFORE_TRAINING, Stage.BEFORE_EPOCH, Stage.AFTER_EPOCH, Stage.AFTER_TRAINING}
    hook = functrain.observe("see", lambda _state, stage: seen.append(stage.name), stages=stages)
    told(shell_of(hook), checkpoint=Checkpoint(tmp_path, every=1))
    for name, expected in (
        ("step00000002-batch00000002-epoch0000", ["AFTER_EPOCH", "BEFORE_EPOCH", "AFTER_EPOCH", "AFTER_TRAINING"]),
        ("step00000003-batch00000003-epoch0000", ["AFTER_EPOCH", "BEFORE_EPOCH", "AFTER_EPOCH", "AFTER_TRAINING"]),
        ("step00000006-batch00000006-epoch0001", ["AFTER_EPOCH", "AFTER_TRAINING"]),
    ):
        seen.clear()
        history = fit(shell_of(hook), [[torch.ones(2, 3)]] * 3, loss_of, 2, progress=False, resume=tmp_path / name)
        assert seen == expected
        assert [each["batch"] for each in history.to_records()] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_without_a_position_still_counts(tmp_path: Path) -> None:
    """One that ``functrain.save`` wrote: epochs and batches are those of the clock."""
    shell = shell_of([])
    batches = [[torch.randn(2, 3, generator=torch.Generator().manual_seed(n))] for n in range(7)]
    for batch in batches[:4]:
        with shell.batch():
            shell.update(loss_of(shell._driver.applier.models.modules["main"], batch))
    path = functrain.save(tmp_path / "one", shell)
    resumed = shell_of([])
    fit(resumed, batches, loss_of, 2, progress=False, resume=path)
    after = record(resumed)
    straight = shell_of([])  # sets torch's generator to where the saved run began
    fit(straight, batches, loss_of, 2, progress=False)
    assert differences(record(straight), after) == []


def test_a_position_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A mapping that the user saved with it is not what fit needs; nothing was loaded."""
    path = functrain.save(tmp_path / "one", shell_of([], seed=1), data={"shard": 3})
    shell = shell_of([])
    before = record(shell)
    with pytest.raises(CheckpointError, match="was not saved by fit"):
        fit(shell, [[torch.ones(2, 3)]], loss_of, 1, progress=False, resume=path)
    assert differences(before, record(shell)) == []
    assert functrain.load(path).parts["data"] == {"shard": 3}


def test_a_loader_of_ones_own_loop_comes_back(tmp_path: Path) -> None:
    """``data`` of save and load, at once and in the background."""
    loader, shell = Shards(), shell_of([])
    next(iter(loader))
    with Background() as background:
        background.save(tmp_path / "one", shell, data=loader)
    other = Shards()
    shell.load(tmp_path / "one", data=other)
    assert other.state_dict() == {"order": 0, "place": 1}
    functrain.load(tmp_path / "one").restore_data(third := Shards())
    assert third.state_dict() == other.state_dict()
