"""The shell on two replicas beside the loop that one would write by hand, interleaved in one run.

    python -m tests.benchmarks.ddp [--windows 200] [--every 2] [--json FILE]

Two processes with gloo and a thread each train an MLP in windows: micro-batches inside no-sync but for the last, norm
clip, AdamW. Medians of windows on the first rank; a ratio below 1 is faster than the loop. The all-reduces of a window
are counted by torch's profiler, those that torch starts by itself included.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from functrain import Accumulate, ClipNorm, Shell
from tests.benchmarks.measuring import Column, Repeated, Row, Update, interleaved, show
from tests.distributed.pool import free_port
from tests.distributed.runs import exchanges

COLUMNS = (
    Column("window", "what", ""),
    Column("ms", "ms"),
    Column("of the loop", "ratio"),
    Column("of the loop, p10", "ratio_p10"),
    Column("all-reduces", "reduces", "d"),
)
WIDTHS = (256, 1024)
ROWS, MAX_NORM = 64, 1.0


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--every", type=int, default=2, help="micro-batches in a window")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    groups = {f"MLP 3x{width}": measured(width, arguments.windows, arguments.every) for width in WIDTHS}
    show(f"two replicas, windows of {arguments.every}, medians", COLUMNS, groups)
    if arguments.json:
        arguments.json.write_text(json.dumps(groups, indent=2))


def measured(width: int, windows: int, every: int) -> list[Row]:
    """Return what the first of two ranks has measured."""
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank_of_two, (free_port(), found, width, windows, every), nprocs=2)  # type: ignore[no-untyped-call]
    return found.get()


def rank_of_two(rank: int, port: int, found: Any, width: int, windows: int, every: int) -> None:
    """Run both contenders in turns on one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    batches = torch.randn(every, ROWS, width, generator=torch.Generator().manual_seed(rank))
    works = {"loop with no_sync": by_hand(width, batches), "shell": by_shell(width, batches)}
    contenders = {name: Repeated(work) for name, (work, _) in works.items()}
    times = interleaved(contenders, windows, block=1, warm=0, what=f"width {width}")
    reduces = {name: exchanges(work)["c10d::allreduce_"] for name, (work, _) in works.items()}
    first, second = (model for _, model in works.values())
    if not all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)):
        raise AssertionError("the loop and the shell have come to different weights")
    if rank == 0:
        found.put(rows(times, reduces))
    dist.destroy_process_group()


def rows(times: dict[str, list[float]], reduces: dict[str, int]) -> list[Row]:
    """Return medians and tenth percentiles as ratios to the first row."""
    medians = {name: statistics.median(each) for name, each in times.items()}
    lows = {name: sorted(each)[len(each) // 10] for name, each in times.items()}
    base, low = next(iter(medians.values())), next(iter(lows.values()))
    return [
        {
            "what": name,
            "ms": medians[name],
            "ratio": medians[name] / base,
            "ratio_p10": lows[name] / low,
            "reduces": reduces[name],
        }
        for name in times
    ]


def replica(width: int) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """Return a replicated MLP and its optimizer."""
    model = DistributedDataParallel(layers(width))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def layers(width: int) -> nn.Module:
    """Return an MLP, always the same."""
    torch.manual_seed(0)
    first, second, third = (nn.Linear(width, width) for _ in range(3))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


def by_hand(width: int, batches: Tensor) -> tuple[Update, nn.Module]:
    """Return a window as torch's documentation writes it."""
    model, optimizer = replica(width)
    last = len(batches) - 1

    def window() -> None:
        optimizer.zero_grad()
        for place, rows in enumerate(batches):
            with nullcontext() if place == last else model.no_sync():
                loss = model(rows).square().mean()
                (loss / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()

    return window, model


def by_shell(width: int, batches: Tensor) -> tuple[Update, nn.Module]:
    """Return the same window in the shell."""
    model, optimizer = replica(width)
    shell = Shell(model, optimizer, [Accumulate(every=len(batches)), ClipNorm(max_norm=MAX_NORM)])

    def window() -> None:
        for rows in batches:
            with shell.batch():
                shell.update(model(rows).square().mean())

    return window, model


if __name__ == "__main__":
    main()
