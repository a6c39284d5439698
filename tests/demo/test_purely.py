from pathlib import Path

import pytest
import torch

from functrain.demo.artifacts import write_artifacts
from functrain.demo.options import Options
from functrain.demo.purely import PureRun
from functrain.demo.trial import Trial, accuracy, prepare, run


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Run the demo of the shared trial once more, by the pure engine."""
    options = Options(epochs=3, out=tmp_path_factory.mktemp("pure"), engine="pure")
    return run(options, prepare(options), progress=False)


def test_both_engines_reach_the_same_accuracy(trial: Trial, pure: Trial) -> None:
    """Raw and averaged weights are as good, to within two of the 360 digits that were held out."""
    assert pure.raw == pytest.approx(trial.raw, abs=2.5 / 360)
    assert pure.averaged == pytest.approx(trial.averaged, abs=2.5 / 360)


def test_both_engines_decide_alike(trial: Trial, pure: Trial) -> None:
    """The same micro-batches are dropped, the same windows vetoed, the same epochs closed."""
    told = ("epoch", "batch", "step", "skipped", "stepped", "skipped_by")
    shell, engine = ([[each[name] for name in told] for each in one.history.records] for one in (trial, pure))
    assert engine == shell
    assert vars(pure.clock).keys() == vars(trial.clock).keys()
    assert {name: value for name, value in vars(pure.clock).items() if name != "optimizer_steps"} == {
        name: value for name, value in vars(trial.clock).items() if name != "optimizer_steps"
    }


def test_both_engines_see_the_same_losses(trial: Trial, pure: Trial) -> None:
    """In the first epoch losses agree to bfloat16's rounding; later ones differ as the roundings have grown."""
    pairs = [(a["loss"], b["loss"]) for a, b in zip(trial.history.records, pure.history.records, strict=True)]
    assert all(a == pytest.approx(b, rel=0.02) for a, b in pairs[:20])


def test_validations_are_those_of_the_averaged_weights(trial: Trial, pure: Trial) -> None:
    """One per epoch, numbered alike, and the last is what the trial reports."""
    places = [[(each["epoch"], each["step"]) for each in one.history.validations] for one in (trial, pure)]
    assert places[0] == places[1] == [(0, 23), (1, 45), (2, 67)]
    assert all(type(step) is int for _, step in places[1])
    assert pure.history.validations[-1]["accuracy"] == pure.averaged


def test_the_model_ends_with_the_weights_of_the_run(pure: Trial) -> None:
    """The shell that takes over holds the pure run's weights, in the model itself."""
    assert isinstance(pure.setup.pure, PureRun)
    own = dict(pure.setup.model.named_parameters())
    assert all(torch.equal(own[name], leaf) for name, leaf in pure.setup.pure.state.params["main"].items())
    assert accuracy(pure.setup.model, pure.setup.held_out) == pure.raw


def test_a_pure_run_leaves_the_same_files(pure: Trial) -> None:
    """Plot, weights and summary are written as they are by the shell."""
    names = {Path(path).name for path in write_artifacts(pure)}
    assert names == {"history.png", "raw.safetensors", "averaged.safetensors", "summary.json"}


def test_without_averages_the_validation_takes_the_weights() -> None:
    """Before the average begins there is nothing to validate but the weights themselves."""
    options = Options(epochs=2, engine="pure")
    setup = prepare(options)
    assert setup.pure is not None
    fresh = setup.pure.averaged().state_dict()
    assert all(torch.equal(fresh[name], value) for name, value in setup.model.state_dict().items())
