"""A project of somebody who uses functrain: one module of hooks, and processes that run there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import functrain

ROOT = Path(functrain.__file__).parents[1]

HOOKS = '''"""Hooks of a project: one breaks L2, the others keep the laws."""

from functrain import EMA, ClipNorm, Hook, Outcome, Stage, hook

STEP = Stage.DO_OPTIMIZER_STEP


@hook(stages=STEP, writes={"grads"})
def halve(state, stage, will_skip):
    for held in state.grads.values():
        for grad in held.values():
            grad.mul_(0.5)
    return state, True, state.loss


def keep(state, stage, will_skip):
    return state, True, state.loss


class Scale(Hook):
    factor: float = 0.5
    stages: frozenset[Stage] = frozenset({Stage.DO_BACKWARD})

    def update(self, state, stage, will_skip):
        return Outcome(state, True, state.loss * self.factor)


def build():
    return ClipNorm(max_norm=1.0) + EMA(decay=0.5)


scale = Scale()
number = 3
'''


def write_project(folder: Path) -> Path:
    """Write the module ``own_hooks`` into a folder, and return the folder."""
    (folder / "own_hooks.py").write_text(HOOKS, encoding="utf-8")
    return folder


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a project, with this functrain; nothing of the surroundings chooses a profile."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "HYPOTHESIS_PROFILE")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "COLUMNS": "120", **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
