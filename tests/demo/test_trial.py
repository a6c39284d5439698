from time import perf_counter

import pytest
import torch
from torch import nn

from functrain.demo.options import Options
from functrain.demo.trial import Trial, accuracy, prepare, run


def test_every_batch_is_counted(trial: Trial) -> None:
    """Three epochs of 45 batches in windows of two: 69 windows, of which those spoiled are skipped."""
    clock = trial.clock
    assert (clock.batch, clock.step + clock.skipped) == (3 * 45, 3 * 23)


def test_the_poison_is_skipped(trial: Trial) -> None:
    """The window of wrong labels and the window of broken images are skipped, and nothing else."""
    assert trial.clock.skipped == 2
    assert len(trial.setup.batches.plan) == 5


def test_no_poison_reaches_the_weights(trial: Trial) -> None:
    """Parameters and buffers are finite after NaN inputs, which BatchNorm would remember for ever."""
    assert all(value.isfinite().all() for value in trial.setup.model.state_dict().values())
    assert all(value.isfinite().all() for value in trial.setup.shell.averaged_module("ema").state_dict().values())


def test_it_learns(trial: Trial) -> None:
    """Three epochs are enough to be far above the tenth that guessing gives."""
    assert trial.raw > 0.8
    assert trial.averaged > 0.8


def test_averaging_is_over_after_the_measurement(trial: Trial) -> None:
    """The model ends the run with its raw weights."""
    assert accuracy(trial.setup.model, trial.setup.held_out) == trial.raw


def test_equal_options_give_equal_weights() -> None:
    """One epoch twice from one seed is bitwise one result."""
    options = Options(epochs=1)
    one, two = (run(options, prepare(options), progress=False).setup.model for _ in range(2))
    assert all(a.equal(b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_another_seed_gives_other_weights() -> None:
    """The seed reaches the first weights."""
    one, two = (prepare(Options(seed=seed)).model for seed in range(2))
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


def test_accuracy_restores_the_mode() -> None:
    """Measuring is done in eval mode and leaves a training model training."""
    model = nn.Sequential(nn.Flatten(), nn.Dropout(1.0), nn.Linear(64, 10))
    examples = (torch.rand(8, 1, 8, 8), torch.arange(8))
    assert accuracy(model, examples) == accuracy(model, examples)
    assert model.training
    accuracy(model.eval(), examples)
    assert not model.training


@pytest.mark.slow
def test_the_default_run_is_good_and_quick() -> None:
    """The averaged weights reach 97 % on digits they never saw, in less than a minute."""
    start = perf_counter()
    outcome = run(Options(), prepare(Options()), progress=False)
    assert outcome.averaged >= 0.97
    assert perf_counter() - start < 60
