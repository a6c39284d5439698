import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import functrain
from functrain.__main__ import main
from functrain.demo import extras
from functrain.pure.engine import _Engine


def test_a_short_run_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One epoch from the command line shows both tables, writes the files and returns 0."""
    assert main(["demo", "--epochs", "1", "--precision", "fp32", "--out", str(tmp_path / "new" / "folder")]) == 0
    shown = capsys.readouterr().out
    assert "The pipeline" in shown
    assert "accuracy, averaged weights" in shown
    assert (tmp_path / "new" / "folder" / "summary.json").exists()


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the program says which there are and exits with 2."""
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of the demo lists its options with their defaults and exits with 0."""
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for option in ("epochs", "precision", "decay", "accumulate", "seed", "out", "device", "engine", "resume"):
        assert f"--{option}" in shown


def test_a_run_that_is_too_short_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of one step cannot be spoiled: the demo says so before it starts and returns 2."""
    line = ["demo", "--epochs", "1", "--accumulate", "45", "--out", str(tmp_path / "out")]
    assert main(line) == 2
    assert "the run has 1 optimizer steps and needs 10" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_missing_extras_are_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without scikit-learn the demo says what to install and returns 1, without a traceback."""
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "sklearn" else object())
    assert main(["demo"]) == 1
    assert 'pip install "functrain[demo]"' in capsys.readouterr().err


def test_an_interrupted_run_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C during training returns 130, names the step, and leaves no folder behind."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(functrain, "fit", interrupted)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 130
    told = capsys.readouterr().err
    assert "interrupted after 0 steps and 0 batches; nothing was written to" in told
    assert not (tmp_path / "out").exists()


def test_an_interrupted_pure_run_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the third batch: the pure state knows that one step was made of two batches."""
    step = _Engine.step

    def interrupted(engine: _Engine, state: functrain.TrainState, batch: object) -> functrain.TrainState:
        if state.clock.batch == 2:
            raise KeyboardInterrupt
        return step(engine, state, batch)

    monkeypatch.setattr(_Engine, "step", interrupted)
    assert main(["demo", "--engine", "pure", "--out", str(tmp_path / "out")]) == 130
    assert "interrupted after 1 steps and 2 batches; nothing was written to" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_reaches_a_real_process(tmp_path: Path) -> None:
    """SIGINT in the middle of an epoch ends the process with 130 and one clear line; what it saved can be resumed."""
    line = [sys.executable, "-m", "functrain", "demo", "--epochs", "1000", "--out", str(tmp_path / "out")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not any(tmp_path.glob("out/checkpoints/*/manifest.json")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"functrain: interrupted after \d+ steps and \d+ batches; functrain demo --resume --out", told)
    assert "Traceback" not in told
    assert functrain.latest(tmp_path / "out" / "checkpoints") is not None
