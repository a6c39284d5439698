"""The demo under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from functrain.demo.options import Options
from functrain.demo.ranks import Place
from functrain.demo.trial import prepare


@pytest.mark.slow
def test_torchrun_trains_in_two_processes(tmp_path: Path) -> None:
    """One table, one bar over all batches of a rank, and one set of files; bad batches of rank 0 stop both ranks."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    demo = ["-m", "functrain", "demo", "--epochs=1", f"--out={tmp_path}"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        run + demo,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root},
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall("The outcome", done.stdout)) == 1
    assert len(re.findall(r"45/45", done.stderr)) == 1
    assert re.search(r"micro-batch dropped, its loss is not finite +│ +3 ", done.stdout)
    assert {"raw.safetensors", "averaged.safetensors", "summary.json"} <= {each.name for each in tmp_path.iterdir()}


def test_the_pure_engine_says_that_it_trains_alone() -> None:
    """Two processes of the pure engine would train the same run twice and write the same files."""
    with pytest.raises(ValueError, match=r"--engine pure trains in one process"):
        prepare(Options(engine="pure"), Place(0, 2))
