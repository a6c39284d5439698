"""Histories of what hardly anybody records: they stay true, and never stop a run."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from functrain import History, Hook, Outcome, Stage, TrainState, fit
from functrain._hook import Names, Stages
from functrain._select import Flag
from tests.scalars import Weight, sgd_shell

BUFFER = torch.zeros(2)
HUGE = 10**400
ODD: dict[str, tuple[Callable[[], Any], Any]] = {
    "in a dict": (lambda: {"a": {"b": BUFFER}}, {"a": {"b": [1.0, 1.0]}}),
    "in a list": (lambda: [BUFFER, 7], [[1.0, 1.0], 7]),
    "in a tuple": (lambda: (BUFFER[0], "told"), [1.0, "told"]),
    "sparse": (lambda: torch.eye(2).to_sparse(), [1.0, 0.0, 0.0, 1.0]),
    "compressed": (lambda: torch.eye(2).to_sparse_csr(), [1.0, 0.0, 0.0, 1.0]),
    "nested": (lambda: torch.nested.nested_tensor([BUFFER, BUFFER[:1]], layout=torch.jagged), [1.0, 1.0, 1.0]),
    "mkldnn": (BUFFER.to_mkldnn, [1.0, 1.0]),
    "huge": (lambda: HUGE, HUGE),
}


class Publish(Hook):
    """Publishes a metric, and writes over its buffer afterwards."""

    name: str = "publish"
    stages: Stages = frozenset({Stage.DO_OPTIMIZER_STEP})
    publishes: Names = frozenset({"odd"})
    make: Any = None

    def update(self, state: TrainState, stage: Stage, will_skip: Flag) -> Outcome:
        """Publish it."""
        BUFFER.fill_(float(state.clock.batch))
        return Outcome(state.replace(metrics={**state.metrics, "odd": self.make()}), True, state.loss)


def one(model: Any, slope: Any) -> Any:
    """Return a loss whose gradient is the slope."""
    return model(slope)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_metric_of_any_kind_is_what_it_was_at_its_time(kind: str, tmp_path: Path) -> None:
    """Buffers that are written over later, also inside containers, and layouts without a flat memory."""
    make, expected = ODD[kind]
    history = fit(sgd_shell(Weight(), Publish(make=make)), [1.0] * 3, one, 1, progress=False)
    history.plot(tmp_path / "run.png")
    history.to_csv(tmp_path / "run.csv")
    assert history.records[1]["odd"] == expected


def test_what_a_validation_returned_is_not_written_into() -> None:
    """A dict of the user's own holds his tensor after the history has been read, and the history what was in it."""
    own = {"a": torch.tensor(1.0)}
    history = fit(
        sgd_shell(Weight(), Hook()), [1.0], one, 1, validate=lambda _: {"score": 0.5, "own": own}, progress=False
    )
    own["a"].fill_(2.0)
    history.read()
    assert isinstance(own["a"], torch.Tensor)
    assert history.validations[0]["own"] == {"a": 1.0}


@pytest.mark.parametrize("name", ["loss", "final_loss", "grad_norm", "grad_limit", "scale"])
@pytest.mark.parametrize("odd", [HUGE, 1j, None, [1.0, 2.0], "told", True], ids=repr)
def test_a_picture_of_odd_numbers_is_drawn(name: str, odd: Any) -> None:
    """Beside ordinary ones, what can be no point of a line is left out, or drawn at the edge."""
    usual = {"loss": 1.0, "final_loss": 1.5, "grad_norm": 1.0, "grad_limit": 1.0, "scale": 2.0, "epoch": 0, "step": 1}
    history = History(
        [{**usual, "batch": 1}, {**usual, "batch": 2, name: odd}], [{"epoch": 0, "step": 1, "score": odd}]
    )
    assert len(history.plot().axes) == 4


def test_tensorboard_takes_huge_numbers(tmp_path: Path) -> None:
    """An int that is no float is written as infinity."""
    pytest.importorskip("tensorboard")
    History([{"loss": HUGE, "batch": 1}]).to_tensorboard(tmp_path)
    assert [*tmp_path.iterdir()]


class Loader:
    """Three batches, and a length that cannot be told."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __iter__(self) -> Iterator[float]:
        return iter([1.0] * 3)

    def __len__(self) -> int:
        raise self.error


@pytest.mark.parametrize("error", [TypeError(), NotImplementedError(), AttributeError()], ids=repr)
def test_a_loader_that_does_not_know_its_length_is_run(error: Exception) -> None:
    """Whatever its ``__len__`` raises to say so."""
    assert len(fit(sgd_shell(Weight(), Hook()), Loader(error), one, 1, progress=False).raw) == 3


class Mute:
    """A stream that only takes text."""

    def write(self, text: str) -> int:
        """Take it."""
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


class Broken(Mute):
    """A stream whose reader has gone."""

    def flush(self) -> None:
        """Fail as a pipe does."""
        raise BrokenPipeError


def closed() -> io.StringIO:
    """Return a stream that was closed."""
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [Mute, Broken, closed])
def test_a_run_does_not_end_where_nobody_can_be_told(stream: Callable[[], Any], monkeypatch: Any) -> None:
    """With a stderr that is closed, broken or no real stream a run trains as without progress."""
    monkeypatch.setattr(sys, "stderr", stream())
    assert len(fit(sgd_shell(Weight(), Hook()), [1.0] * 3, one, 1).raw) == 3
