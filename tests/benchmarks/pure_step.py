"""The whole update as one compiled function beside loops that do the same, interleaved in one run.

    python -m tests.benchmarks.pure_step [--network mlp|conv] [--lanes 32] [--chunk 32] [--json FILE]

Forward, backward, norm clip, finite and spike veto, AdamW, average. Medians per model; a ratio below 1 is faster than
the eager loop. Peak memory is that of all tensors of the update, weights and averages included, per model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from tests.benchmarks.measuring import Column, Repeated, Row, Update, interleaved, show, summary, timed
from tests.benchmarks.networks import NETWORKS, Network
from tests.benchmarks.peak import alive, peak
from tests.benchmarks.updates import (
    compiled,
    compiled_loop,
    donated,
    donated_to_cpp,
    eager_loop,
    lanes,
    torch_compiled,
)

COLUMNS = (
    Column("update", "what", ""),
    Column("ms per model", "ms"),
    Column("of the eager loop", "ratio"),
    Column("peak, KiB", "peak_kib", ".0f"),
    Column("of the eager loop", "peak_ratio", ".2f"),
    Column("first call, s", "first_call_s", ".1f"),
)


class Entry(NamedTuple):
    """One way to update, warm."""

    update: Update
    models: int
    first_call_s: float
    peak_kib: float


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="mlp")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--chunk", type=int, help="lanes at a time; by default all")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    network, chunk = NETWORKS[arguments.network], arguments.chunk or arguments.lanes
    works = {
        "loop, eager": (eager_loop, 1),
        "loop, compiled model and optimizer": (compiled_loop, 1),
        "pure step, torch.compile": (torch_compiled, 1),
        "pure step, pure.compiled": (compiled, 1),
        "pure.compiled, donated": (donated, 1),
        "pure.compiled, donated, C++ wrapper": (donated_to_cpp, 1),
        f"{arguments.lanes} lanes in parts of {chunk}, donated": (
            lambda it: lanes(it, arguments.lanes, chunk),
            arguments.lanes,
        ),
    }
    entries = {name: entry(network, *work) for name, work in tqdm(works.items(), desc="compiling")}
    rows = measured(entries, arguments.rounds)
    show(f"{network.title}, medians", COLUMNS, {"": rows})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def entry(network: Network, build: Callable[[Network], Update], models: int) -> Entry:
    """Build an update, run it until it is warm, and measure its memory."""
    others = alive()
    update = build(network)
    first = timed(update)
    for _ in range(3):
        update()
    return Entry(update, models, first / 1e3, peak(update, others) / models / 2**10)


def measured(entries: dict[str, Entry], rounds: int) -> list[Row]:
    """Return medians per model, warm and taken in turns, and ratios to the first row."""
    contenders = {name: Repeated(each.update) for name, each in entries.items()}
    times = interleaved(contenders, rounds, block=1, warm=0, what="measuring")
    medians = {name: summary(times[name])["ms"] / each.models for name, each in entries.items()}
    base, first = next(iter(medians.values())), next(iter(entries.values()))
    return [
        {
            "what": name,
            "ms": medians[name],
            "ratio": medians[name] / base,
            "peak_kib": each.peak_kib,
            "peak_ratio": each.peak_kib / first.peak_kib,
            "first_call_s": each.first_call_s,
        }
        for name, each in entries.items()
    ]


if __name__ == "__main__":
    main()
