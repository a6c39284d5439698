"""This library beside others, interleaved in one run: averages alone, and whole updates.

    python -m tests.benchmarks [--out DIR] [--threads N] [--rounds N] [--only averages|updates]

Prints a table for each part, and leaves ``results.json`` and a picture of each part in ``--out``. Medians of updates
that are taken block by block in turns; a ratio below 1 is faster. What is not installed is a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.measuring import Row, show
from tests.benchmarks.parts import PARTS, rows
from tests.benchmarks.picture import drawn

PACKAGES = ("torch", "accelerate", "ema-pytorch", "lightning", "nvalchemi-toolkit", "timm")


def main() -> None:
    """Measure, print the tables, write JSON and pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".benchmarks"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=PARTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts = [arguments.only] if arguments.only else list(PARTS)
    load = os.getloadavg()
    found = {name: measured(name, arguments.rounds, arguments.out) for name in parts}
    results = {"run": run(arguments.rounds), "load_before": load, "load_after": os.getloadavg(), "parts": found}
    (arguments.out / "results.json").write_text(json.dumps(results, indent=2))


def measured(name: str, rounds: int, out: Path) -> dict[str, list[Row]]:
    """Measure a part, show it and draw it."""
    part = PARTS[name]
    groups = dict(rows(part, rounds))
    show(part.title, part.columns, groups)
    ratio, base = next(iter(part.bases.items()))
    drawn(part.title.removesuffix(", medians"), ratio, base, groups, out / f"{name}.png")
    return groups


def run(rounds: int) -> dict[str, Any]:
    """Return what was run, and how."""
    versions = {each.name: each.version for each in distributions() if each.name in PACKAGES}
    return {"threads": torch.get_num_threads(), "rounds": rounds, "versions": versions}


if __name__ == "__main__":
    main()
