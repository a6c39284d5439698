"""The program for several processes that the README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_program_says_what_is_shown(tmp_path: Path) -> None:
    """It runs under torchrun as the README says, and prints the lines below it, in any order of the ranks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program, shown = (
        re.findall(rf"^```{kind} train.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for kind in ("python", "text")
    )
    assert len(program) == len(shown) == 1
    (tmp_path / "train.py").write_text(program[0], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    # Two processes share the stream: the end of one's line may come after the other's.
    assert sorted(re.findall(r"rank \d: .*?(?:True|False)", done.stdout)) == shown[0].splitlines()
