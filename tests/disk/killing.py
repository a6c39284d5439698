"""A process that saves and saves, to be killed: ``python -m tests.disk.killing FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from functrain import Checkpoint, TrainState


def state_at(step: int) -> TrainState:
    """Return a state all of whose numbers are its step: half of another one would be seen."""
    made = TrainState(params={"main": {f"w{place}": torch.full((200_000,), float(step)) for place in range(6)}})
    return made.replace(clock=made.clock.replace(step=step))


def main() -> None:
    """Save without end, from the step after the latest one there is."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    step = int(sys.argv[2])
    with Checkpoint(folder, keep=2, background=bool(int(sys.argv[3]))) as saving:
        while True:
            saving.save(state_at(step))
            sys.stdout.write(f"{step}\n")
            sys.stdout.flush()
            step += 1


if __name__ == "__main__":
    main()
