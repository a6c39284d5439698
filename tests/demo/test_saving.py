"""``functrain demo --resume``: the weights of an interrupted run are those of one that was not."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import functrain
from functrain.__main__ import main
from functrain.demo import purely, trial
from functrain.demo.recipe import loss_of

SHORT = ["demo", "--epochs", "2", "--precision", "fp32"]


def interrupt_at(call: int, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Let Ctrl-C come while a loss is computed."""
    calls: list[int] = []

    def loss(model: Any, batch: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGINT)
        return loss_of(model, batch)

    monkeypatch.setattr(trial if engine == "shell" else purely, "loss_of", loss)


@pytest.mark.parametrize(("engine", "saved"), [("shell", 70), ("pure", 45)])
def test_a_resumed_demo_ends_with_the_same_weights(
    engine: str, saved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupted in the second epoch: the shell has saved that very batch, the pure engine its last epoch."""
    line = [*SHORT, "--engine", engine, "--out"]
    assert main([*line, str(tmp_path / "straight")]) == 0
    with monkeypatch.context() as patch:
        interrupt_at(70, patch, engine)
        assert main([*line, str(tmp_path / "stopped")]) == 130
    assert "functrain demo --resume --out" in capsys.readouterr().err
    found = functrain.latest(tmp_path / "stopped" / "checkpoints")
    assert found is not None
    assert functrain.load(found).clock["batch"] == saved
    assert main([*line, str(tmp_path / "stopped"), "--resume"]) == 0
    for name in ("raw", "averaged"):
        one, other = (load_file(tmp_path / run / f"{name}.safetensors") for run in ("straight", "stopped"))
        assert all(one[key].equal(other[key]) for key in one)
    assert main([*line, str(tmp_path / "stopped"), "--resume"]) == 0  # it is over: nothing is left to train


def test_nothing_to_resume_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and what to do."""
    assert main([*SHORT, "--resume", "--out", str(tmp_path)]) == 2
    assert "there is no checkpoint in" in capsys.readouterr().err


def test_other_options_are_a_conflict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was accumulated otherwise is told so, with both values."""
    assert main([*SHORT, "--epochs", "1", "--out", str(tmp_path)]) == 0
    assert main([*SHORT, "--epochs", "1", "--accumulate", "3", "--resume", "--out", str(tmp_path)]) == 2
    assert "every=2 in the checkpoint and every=3 in the pipeline" in capsys.readouterr().err


def test_a_new_run_removes_the_checkpoints_of_the_last(tmp_path: Path) -> None:
    """And nothing else of the folder."""
    other = tmp_path / "checkpoints" / "mine"
    other.mkdir(parents=True)
    for epochs in ("3", "1"):
        assert main([*SHORT, "--epochs", epochs, "--out", str(tmp_path)]) == 0
    names = sorted(each.name for each in other.parent.iterdir())
    assert names == ["history.jsonl", "mine", "step00000021-batch00000045-epoch0001"]
