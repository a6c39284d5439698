"""What one of two hosts runs: ``python -m tests.distributed.hosts RANK FOLDER``."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed.jobs import number_shell, present
from tests.distributed.runs import PLANS, train

FIRST, SECOND = "10.197.0.1", "10.197.0.2"
PORT = 29400


def run(rank: int, folder: Path) -> None:
    """Join the other host, train by a plan, then train until the other is lost; what came of both goes into files."""
    torch.set_num_threads(1)
    where = f"tcp://{FIRST}:{PORT}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timedelta(seconds=3))
    torch.save(train(PLANS["everything"], "ddp", rank, 2), folder / f"{rank}.pt")
    (folder / f"{rank}.txt").write_text(until_lost(folder / f"{rank}.going"), encoding="utf-8")


def until_lost(going: Path) -> str:
    """Train until the other host cannot be reached; return what the error says."""
    model, shell = number_shell()
    while True:
        try:
            present(model, shell, 1.0)
        except RuntimeError as error:
            return "\n".join([str(error), *error.__notes__])
        if shell.state.clock.step == 5:
            going.touch()


if __name__ == "__main__":
    run(int(sys.argv[1]), Path(sys.argv[2]))
