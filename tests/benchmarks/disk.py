"""Checkpoints of a large state beside bare files, interleaved in one run.

    python -m tests.benchmarks.disk [--megabytes 400] [--rounds 7] [--folder FOLDER] [--json FILE]

Saving beside ``safetensors.torch.save_file``, fsync and rename of the same tensors; loading beside reading the bytes of
that file into memory. A background save is what the loop waits for, beside the copy that it has to make; and a loop
while the thread writes beside the same loop alone. Medians; a ratio is bare over functrain, so 1 is as fast, and 0.85
takes a sixth more time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import nn
from tqdm import tqdm

import functrain
from functrain import EMA, Shell
from functrain.disk import Background
from functrain.disk.folder import sync_folder
from functrain.disk.saving import pack

SHARES = 5
"""Weights, gradients, both moments of Adam, averages."""


def shell_of(megabytes: int) -> Shell:
    """Return a shell whose checkpoint has about so many megabytes, in eight layers, after a step."""
    width = int((megabytes * 1e6 / 4 / SHARES / 8) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8)))
    shell = Shell(model, torch.optim.AdamW(model.parameters(), lr=1e-3), EMA())
    with shell.batch():
        shell.update(model(torch.randn(4, width)).square().mean())
    return shell


def bare_save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a file as one would by hand, so that it appears whole."""
    beside = path.with_suffix(".partial")
    save_file(tensors, beside)
    file = os.open(beside, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    beside.rename(path)
    sync_folder(path.parent)


def bare_read(path: Path) -> bytes:
    """Read a file."""
    return path.read_bytes()


def small_loop() -> None:
    """Train a small network for about as long as a checkpoint is being written."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, 256)
    for _ in range(100):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def timed(work: Callable[[], Any]) -> float:
    """Return the milliseconds that something takes."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def measured(shell: Shell, folder: Path, rounds: int) -> dict[str, float]:
    """Return medians in milliseconds."""
    packed = pack(shell)
    named = zip(packed.entries, packed.tensors, strict=True)
    tensors = {entry.name: tensor for entry, tensor in named if tensor.ndim}  # it refuses losses that are one tensor
    bare, ours = folder / "bare.safetensors", folder / "ours"
    times: dict[str, list[float]] = {}
    background = Background()
    for _ in tqdm(range(rounds + 1), disable=None):
        works = {
            "bare write": lambda: bare_save(tensors, bare),
            "save": lambda: functrain.save(ours, shell),
            "bare read": lambda: bare_read(bare),
            "load": lambda: functrain.load(ours),
            "shell.load": lambda: shell.load(ours),
            "copy": lambda: [tensor.clone() for tensor in packed.tensors],
            "background save": lambda: background.save(folder / "behind", shell),
            "loop, writing": small_loop,  # in the time that the thread needs
        }
        for name, work in works.items():
            times.setdefault(name, []).append(timed(work))
        background.wait()
        times.setdefault("loop, alone", []).append(timed(small_loop))
        for path in (ours, folder / "behind"):
            shutil.rmtree(path)
    background.close()
    return {name: statistics.median(found[1:]) for name, found in times.items()}


PAIRS = {
    "save": ("bare write", 0.85),
    "load": ("bare read", 0.60),
    "shell.load": ("bare read", 0.60),
    "background save": ("copy", None),
    "loop, writing": ("loop, alone", None),
}


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shell = shell_of(arguments.megabytes)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        found = measured(shell, Path(folder), arguments.rounds)
    table = Table(title=f"{arguments.megabytes} MB, medians of {arguments.rounds}")
    for column in ("", "ms", "beside", "ms", "ratio", "wanted"):
        table.add_column(column, justify="right")
    ratios = {name: found[bare] / found[name] for name, (bare, _) in PAIRS.items()}
    for name, (bare, wanted) in PAIRS.items():
        row = (name, f"{found[name]:.0f}", bare, f"{found[bare]:.0f}", f"{ratios[name]:.2f}", str(wanted or ""))
        table.add_row(*row)
    Console().print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"milliseconds": found, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
