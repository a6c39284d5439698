"""Loaders, epochs and validations that fit cannot use, and pictures of odd runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from functrain import History, Shell, fit
from tests.scalars import Weight, sgd_shell


def loss(model: nn.Module, slope: float) -> Tensor:
    """Return a loss of the given slope."""
    return model(slope)


def fitted(**options: Any) -> tuple[Shell, History]:
    """Run fit on one weight."""
    shell = sgd_shell(Weight(), [])
    return shell, fit(shell, **{"loader": [1.0, 2.0], "loss_fn": loss, "epochs": 2, "progress": False, **options})


@pytest.mark.parametrize("epochs", [-1, 1.0, True, "2", None])
def test_epochs_that_are_no_count_are_refused(epochs: Any) -> None:
    """A negative number would train nothing without a word."""
    with pytest.raises((TypeError, ValueError), match="epochs must be an int of at least 0, got"):
        fitted(epochs=epochs)


def test_no_epochs_are_no_training() -> None:
    """Zero is a count."""
    shell, history = fitted(epochs=0)
    assert (shell.state.clock.batch, history.raw) == (0, [])


@pytest.mark.parametrize("make", [lambda: iter([1.0, 2.0]), lambda: (x for x in (1.0, 2.0)), lambda: map(float, "12")])
def test_an_iterator_that_is_used_up_is_refused_in_the_second_epoch(make: Callable[[], Iterator[float]]) -> None:
    """An epoch without a batch would look like training; one epoch is fine."""
    assert fitted(loader=make(), epochs=1)[0].state.clock.batch == 2
    with pytest.raises(ValueError, match="the loader is an iterator and is used up: this epoch got no batch"):
        fitted(loader=make())


class Rewinding:
    """A loader that is its own iterator and starts again each time."""

    def __iter__(self) -> Iterator[float]:
        self.left = 2
        return self

    def __next__(self) -> float:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return 1.0


def test_an_iterator_that_rewinds_is_a_loader() -> None:
    """Some loaders are their own iterators."""
    assert fitted(loader=Rewinding())[0].state.clock.batch == 4


@pytest.mark.parametrize("found", [None, "good", (1.0, 2.0), torch.ones(3)])
def test_a_validation_that_gives_no_number_is_refused(found: Any) -> None:
    """A forgotten ``return`` would be recorded as a score."""
    with pytest.raises(TypeError, match="validate must return a number or a mapping of numbers, got"):
        fitted(validate=lambda _model: found)


def test_a_scheduler_that_waits_for_a_metric_says_that_there_is_none() -> None:
    """An empty summary is fine unless somebody needs a number of it."""
    assert fitted(validate=lambda _model: {})[1].validations[0] == {"epoch": 0, "step": 2}
    optimizer = torch.optim.SGD((model := Weight()).parameters())
    shell = Shell(model, optimizer, [], ReduceLROnPlateau(optimizer))
    with pytest.raises(KeyError, match="the validation summary is empty"):
        fit(shell, [1.0], loss, 1, validate=lambda _model: {}, progress=False)


def test_scores_named_like_counts_do_not_hide_them() -> None:
    """When a validation was made is for the history to say."""
    _, history = fitted(validate=lambda _model: {"epoch": 7.0, "accuracy": 1.0})
    assert [each["epoch"] for each in history.validations] == [0, 1]


def test_validations_that_differ_are_drawn() -> None:
    """Each score has its own line; where it was not measured there is a gap."""
    scores = iter([{"a": torch.tensor(1.0)}, {"b": 2.0}])
    _, history = fitted(validate=lambda _model: next(scores))
    lines = history.plot().axes[1].get_lines()
    assert [each.get_label() for each in lines] == ["a", "b"]
    assert [math.isnan(float(y)) for each in lines for y in each.get_ydata()] == [False, True, True, False]


def test_modes_that_a_validation_sets_do_not_outlive_it() -> None:
    """A part that trains in eval mode, frozen statistics say, stays so after ``model.train()`` in a validation."""
    model = nn.ModuleDict({"w": Weight(), "norm": nn.BatchNorm1d(1).eval()})
    shell = Shell({"main": model}, torch.optim.SGD(model["w"].parameters(), lr=1.0), [])
    fit(
        shell,
        [1.0],
        lambda each, x: each["w"](x),
        1,
        validate=lambda each: float(each.train().training),
        progress=False,
    )
    assert [model.training, model["w"].training, model["norm"].training] == [True, True, False]
