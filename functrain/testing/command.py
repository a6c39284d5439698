"""The subcommand ``laws``: what happens between the parsed arguments and the exit status."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

KEPT, BROKEN, REFUSED = 0, 1, 2
DEFAULT_FILE = "test_laws.py"
DESCRIPTION = """Check the laws of a training update on a hook, a pipeline, a class of hooks, or a function that is a
hook or makes one. Exits with 1 if a law is broken, and shows the smallest state that breaks it; with 2 if there is
nothing to check. The current directory can be imported from."""


def add_laws(commands: Any) -> None:
    """Add the subcommand to those of a parser."""
    parser: ArgumentParser = commands.add_parser("laws", help="check a hook of your own", description=DESCRIPTION)
    parser.add_argument("target", nargs="?", metavar="package.module:hook", help="what to check")
    told = 'only this law, "L2 purity" or L2; may be given again'
    parser.add_argument("--law", action="append", metavar="NAME", help=told)
    parser.add_argument("--examples", type=_count, metavar="N", help="calls for a law that is checked quickly")
    parser.add_argument("--profile", metavar="NAME", help="Hypothesis profile: dev, ci, thorough, or your own")
    told = f"write a test file, which is yours from then on; by default {DEFAULT_FILE}"
    parser.add_argument("--write", nargs="?", const=DEFAULT_FILE, metavar="PATH", help=told)
    parser.add_argument("--overwrite", action="store_true", help="with --write: also where there is a file")
    parser.set_defaults(run=laws)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number of examples")
    return int(text)


def laws(arguments: Namespace) -> int:
    """Check or write, or say why not; return the exit status."""
    if find_spec("hypothesis") is None:
        return refuse('needs hypothesis, which is not installed here: run  pip install "functrain[testing]"')
    sys.path[:0] = [] if str(Path.cwd()) in sys.path else [str(Path.cwd())]
    from functrain.testing.target import TargetError

    try:
        return check(arguments) if arguments.write is None else write(arguments)
    except TargetError as error:
        return refuse(str(error))


def refuse(reason: str) -> int:
    """Say why nothing was done."""
    print(f"functrain laws: {reason}", file=sys.stderr)
    return REFUSED


def check(arguments: Namespace) -> int:
    """Print the report of a target, and its first violation in full."""
    from functrain.testing.printing import print_report
    from functrain.testing.target import checked

    report = checked(arguments.target, arguments.law, arguments.examples, arguments.profile)
    print_report(report)
    return BROKEN if report.broken else KEPT


def write(arguments: Namespace) -> int:
    """Write a test file for a target, or one to begin with."""
    from functrain.testing.own_file import is_target, write_test_file

    target, path = arguments.target, arguments.write
    if target is None and is_target(path):  # `--write package.module:hook` names no file
        target, path = path, DEFAULT_FILE
    print(f"wrote {write_test_file(target, Path(path), 'w' if arguments.overwrite else 'x')}")
    return KEPT
