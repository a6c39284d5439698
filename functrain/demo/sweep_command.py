"""The subcommand ``sweep``."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from functrain.demo.command import lacking
from functrain.demo.options import SweepOptions, add_options, options_of

if TYPE_CHECKING:
    from rich.console import Console

    from functrain.demo.ranks import Place
    from functrain.pure.table import SweepTable

DESCRIPTION = """Train 64 networks on the handwritten digits at once, as lanes of one step: eight learning rates by
eight decays of the averaged weights. Show how each fared, and draw the map."""


def add_sweep(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser: ArgumentParser = commands.add_parser(
        "sweep", help="train 64 networks at once and draw the map", description=DESCRIPTION
    )
    add_options(parser, SweepOptions)
    parser.set_defaults(run=sweep)


def sweep(arguments: Namespace) -> int:
    """Run the sweep, or say what it needs; return the exit status."""
    if lacking("sweep"):
        return 1
    from rich.console import Console  # only now is it known to be there

    from functrain.demo.ranks import joined

    options = options_of(arguments, SweepOptions)
    with joined(options.device) as place:
        show(options, Console(quiet=not place.is_first), place)
    return 0


def show(options: SweepOptions, console: Console, place: Place) -> None:
    """Show how each lane fared, and which is the best, and write the files."""
    from functrain.demo.sweeping import swept

    table = swept(options)
    console.print(table)
    best = table.best("accuracy", largest=True)
    console.print(
        f"best: lane {best['lane']}, learning rate {best['lr']:g}, decay {best['hooks.ema.decay']:g}, "
        f"{best['accuracy']:.2%} of the digits held out"
    )
    for path in write_sweep(table, options.out) if place.is_first else ():
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)


def write_sweep(table: SweepTable, folder: Path) -> list[Path]:
    """Write map and records into a folder, which is made if need be; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn, records = folder / "sweep.png", folder / "sweep.json"
    table.heat_map("lr", "hooks.ema.decay", "accuracy", drawn)
    found = [{name: finite(value) for name, value in record.items()} for record in table]
    records.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return [drawn, records]


def finite(value: Any) -> Any:
    """Return a value as JSON can hold it, which knows neither NaN nor infinity.

    >>> finite(0.5), finite(float("nan"))
    (0.5, None)
    """
    return None if isinstance(value, float) and not math.isfinite(value) else value
