"""A process that is killed while it saves leaves a checkpoint that loads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from functrain import latest, load, save
from functrain.disk import folder as folders
from tests.testing.own_project import ROOT

KILLS = int(os.environ.get("FUNCTRAIN_KILLS", "6"))
"""How often a process is killed."""


def killed_at_work(folder: Path, start: int, pause: float, *, background: bool) -> None:
    """Start a process that saves, let it save once, and kill it a moment later."""
    command = [sys.executable, "-m", "tests.disk.killing", str(folder), str(start), str(int(background))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_the_latest_loads_after_every_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any moment: the latest one is whole, no older than the one before it, and nothing piles up."""
    monkeypatch.setattr(folders, "YOUNG", 0.0)
    moments = random.Random(0)  # noqa: S311 - moments are no secrets
    last = 0
    for turn in range(KILLS):
        killed_at_work(tmp_path, last + 1, moments.uniform(0.0, 0.15), background=bool(turn % 2))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing that can be seen is damaged
            found = latest(tmp_path)
        assert found is not None
        state = load(found).state
        step = state.clock.step
        assert step > last or (turn % 2 and step >= last)
        assert all(bool((leaf == step).all()) for leaf in state.params["main"].values())
        last = step
        folders.sweep(tmp_path)
        assert len(list(tmp_path.iterdir())) <= 5  # two are kept; each kill between writing and rotating leaves one
    save(tmp_path / "last", state, keep=2)
    assert len(list(tmp_path.iterdir())) == 2
