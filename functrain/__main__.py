"""The command line: ``functrain demo``, ``functrain sweep`` and ``functrain laws``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from functrain.demo.command import add_demo
from functrain.demo.sweep_command import add_sweep
from functrain.testing.command import add_laws

INTERRUPTED = 130
"""The exit status of what Ctrl-C ended, by the custom of shells: 128 and the number of the signal."""


def build_parser() -> ArgumentParser:
    """Return the parser of all subcommands; each sets ``run``, from parsed arguments to an exit status."""
    parser = ArgumentParser(
        prog="functrain", description="The training update of PyTorch models as a fold of pure hooks."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_demo(commands)
    add_sweep(commands)
    add_laws(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status of the process.

    Args:
        arguments: the command line without the program's name; by default that of this process.
    """
    parsed = build_parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except KeyboardInterrupt as interrupt:
        print(f"\nfunctrain: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
