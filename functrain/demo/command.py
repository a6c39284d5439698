"""The subcommand ``demo``: what happens between the parsed arguments and the exit status."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from functrain.demo.extras import missing_extras, remedy
from functrain.demo.options import Options, add_options, options_of

if TYPE_CHECKING:
    from rich.console import Console

    from functrain.demo.ranks import Place

DESCRIPTION = """Train a small convolutional network on 1,437 handwritten digits through functrain's hooks,
with a few batches poisoned on purpose, and measure it on the 360 that it never saw."""


def add_demo(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser: ArgumentParser = commands.add_parser(
        "demo", help="train a network on handwritten digits", description=DESCRIPTION
    )
    add_options(parser)
    parser.set_defaults(run=demo)


def demo(arguments: Namespace) -> int:
    """Run the demo, or say what it needs; return the exit status."""
    if lacking("demo"):
        return 1
    from rich.console import Console  # only now is it known to be there

    from functrain.demo.ranks import joined

    options = options_of(arguments, Options)
    try:
        with joined(options.device) as place:
            show(options, Console(quiet=not place.is_first), place)
    except ValueError as error:  # too short a run, nothing to resume from, or a checkpoint of another run
        print(f"functrain demo: {error}", file=sys.stderr)
        return 2
    return 0


def lacking(command: str) -> bool:
    """Tell whether something is missing that a command imports; say what, and how to get it."""
    missing = missing_extras()
    if missing:
        print(remedy(missing, command), file=sys.stderr)
    return bool(missing)


def show(options: Options, console: Console, place: Place | None = None) -> None:
    """Show the pipeline, the progress and the outcome of one run, and write its files.

    Raises:
        RunTooShortError: before anything has run.
        NothingToResumeError: the same.
        ValueError: the checkpoint to resume from is damaged, or of a run with other options.
        KeyboardInterrupt: with a message that says how far the run had come.
    """
    from functrain.demo.artifacts import write_artifacts
    from functrain.demo.ranks import Place
    from functrain.demo.report import outcome_table, pipeline_table
    from functrain.demo.saving import saving_of
    from functrain.demo.trial import prepare, run

    place = place or Place()
    setup = prepare(options, place)
    saving = saving_of(options, place)
    try:
        console.print(pipeline_table(setup.shell.pipeline))
        trial = run(options, setup, saving=saving)
    except KeyboardInterrupt:
        told = f"interrupted after {int(setup.clock.step)} steps and {int(setup.clock.batch)} batches"
        raise KeyboardInterrupt(f"{told}; {what_is_left(options)}") from None
    console.print(outcome_table(trial))
    for path in write_artifacts(trial) if place.is_first else ():
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)


def what_is_left(options: Options) -> str:
    """Say what an interrupted run has left to go on from."""
    from functrain.demo.saving import checkpoints_of
    from functrain.disk.rotation import found_in

    if found_in(checkpoints_of(options)):
        return f"functrain demo --resume --out {options.out} goes on from its latest checkpoint"
    return f"nothing was written to {options.out}"
