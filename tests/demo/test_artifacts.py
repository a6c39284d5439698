import json

import pytest
import torch
from safetensors.torch import load_file

from functrain.demo.artifacts import write_artifacts
from functrain.demo.digits import load_digits
from functrain.demo.network import network
from functrain.demo.trial import Trial, accuracy


@pytest.fixture(scope="module")
def written(trial: Trial) -> Trial:
    """Write the files of the shared run."""
    write_artifacts(trial)
    return trial


def test_the_files_are_those_reported(trial: Trial) -> None:
    """What is returned is what is in the folder, and a second run may overwrite it."""
    paths = write_artifacts(trial)
    assert sorted(paths) == sorted(trial.options.out.iterdir())
    assert {path.name for path in paths} == {
        "history.png",
        "raw.safetensors",
        "averaged.safetensors",
        "summary.json",
    }


@pytest.mark.parametrize("kind", ["raw", "averaged"])
def test_the_weights_load_into_a_new_network(written: Trial, kind: str) -> None:
    """A fresh network with the weights from the file has the accuracy that was reported."""
    model = network()
    model.load_state_dict(load_file(written.options.out / f"{kind}.safetensors"))
    held_out = load_digits(written.options.seed).held_out
    assert accuracy(model, held_out) == getattr(written, kind)


def test_raw_and_averaged_weights_differ(written: Trial) -> None:
    """The two files are not one file twice."""
    raw, averaged = (load_file(written.options.out / f"{kind}.safetensors") for kind in ("raw", "averaged"))
    assert raw.keys() == averaged.keys()
    assert not torch.equal(raw["digit.weight"], averaged["digit.weight"])


def test_the_summary_says_what_ran(written: Trial) -> None:
    """Options, pipeline, clock, vetoes and accuracies are readable without functrain."""
    summary = json.loads((written.options.out / "summary.json").read_text(encoding="utf-8"))
    assert summary["options"]["epochs"] == 3
    assert summary["pipeline"][0] == "Accumulate(every=2)"
    assert summary["clock"]["batch"] == 135
    assert summary["accuracy"] == {"raw": written.raw, "averaged": written.averaged}
    assert sum(summary["vetoes"].values()) >= 3


def test_the_plot_is_a_picture(written: Trial) -> None:
    """The plot starts with the eight bytes of every PNG."""
    assert (written.options.out / "history.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
