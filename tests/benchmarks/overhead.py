"""The shell's whole update beside a hand-written loop that does the same, interleaved in one run.

    python -m tests.benchmarks.overhead [--json FILE]

Accumulate, norm clip, finite veto, AdamW and EMA; the loop uses ``clip_grad_norm_`` and ``AveragedModel`` with the
foreach average. Medians; a ratio below 1 means that the shell is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from functrain import EMA, Accumulate, ClipNorm, Shell, SkipNonFinite

DECAY, MAX_NORM = 0.999, 1.0
Work = tuple[str, Callable[[], nn.Module], Callable[[], Tensor], int]


class Many(nn.Module):
    """Ten million numbers in two thousand tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(0.01 * torch.randn(5000)) for _ in range(2000)])

    def forward(self, x: Tensor) -> Tensor:
        """Return one number per tensor."""
        return torch.stack([(part * x).sum() for part in self.parts])


def mlp(width: int, depth: int) -> nn.Module:
    """Return a perceptron of 64 inputs and 10 outputs."""
    layers: list[nn.Module] = []
    for place in range(depth):
        layers += [nn.Linear(width if place else 64, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


WORKS: tuple[Work, ...] = (
    ("MLP 3x64, batch 128", lambda: mlp(64, 3), lambda: torch.randn(128, 64), 400),
    ("10M parameters in 10 tensors", lambda: mlp(1780, 4), lambda: torch.randn(16, 64), 30),
    ("10M parameters in 2,000 tensors", Many, lambda: torch.randn(5000), 15),
)


def hand_written(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Return one update as a loop would write it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    parameters = list(model.parameters())

    def update() -> None:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        if torch.isfinite(loss) and torch.isfinite(norm):
            optimizer.step()
            average.update_parameters(model)

    return update


def through_the_shell(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Return the same update through hooks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    hooks = [Accumulate(every=1), ClipNorm(max_norm=MAX_NORM), SkipNonFinite(drop=False), EMA(decay=DECAY)]
    shell = Shell(model, optimizer, hooks)

    def update() -> None:
        with shell.batch():
            shell.update(model(x).square().mean())

    return update


def timed(update: Callable[[], None]) -> float:
    """Return the milliseconds of one call."""
    start = time.perf_counter()
    update()
    return 1e3 * (time.perf_counter() - start)


def compared(build: Callable[[], nn.Module], data: Callable[[], Tensor], rounds: int) -> tuple[float, float]:
    """Return the medians of both, warm and taken in turns."""
    torch.manual_seed(0)
    x = data()
    both = [make(build(), x) for make in (hand_written, through_the_shell)]
    for update in both * 5:
        update()
    times = [[timed(update) for update in both] for _ in range(rounds)]
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times)


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for name, build, data, rounds in tqdm(WORKS, desc="measuring"):
        hand, shell = compared(build, data, rounds)
        rows.append({"model": name, "loop_ms": hand, "shell_ms": shell, "ratio": shell / hand})
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def show(rows: list[dict[str, float | str]]) -> None:
    """Print the rows as a table."""
    table = Table("model", "loop, ms", "shell, ms", "shell / loop", title="One whole update, medians")
    for row in rows:
        table.add_row(str(row["model"]), *(f"{row[key]:.3f}" for key in ("loop_ms", "shell_ms", "ratio")))
    Console().print(table)


if __name__ == "__main__":
    main()
