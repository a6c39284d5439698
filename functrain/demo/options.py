"""What a user may set on the command line of the demo."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

import torch

ENGINES = ("shell", "pure")
PRECISIONS = ("fp32", "bf16", "fp16", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Options:
    """The settings of one trial; equal options on one machine give equal weights.

    >>> Options(epochs=2).precision
    'bf16'
    """

    epochs: int = 12
    precision: str = "bf16"
    decay: float = 0.98
    accumulate: int = 2
    seed: int = 0
    out: Path = Path("functrain-demo")
    device: str = "cpu"
    engine: str = "shell"
    resume: bool = False

    def to_json(self) -> dict[str, int | float | str]:
        """Return the settings as JSON can hold them."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class SweepOptions:
    """The settings of one sweep.

    >>> SweepOptions().epochs
    4
    """

    epochs: int = 4
    seed: int = 0
    out: Path = Path("functrain-sweep")
    device: str = "cpu"


Settings = TypeVar("Settings", Options, SweepOptions)


def whole(text: str) -> int:
    """Read a whole number, or say that it is none."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None


def positive(text: str) -> int:
    """Read a whole number of at least 1.

    >>> positive("4")
    4
    """
    if (number := whole(text)) < 1:
        raise ArgumentTypeError(f"{number} is below 1")
    return number


def seed(text: str) -> int:
    """Read what both numpy and torch take as a seed."""
    if not 0 <= (number := whole(text)) < 2**32:
        raise ArgumentTypeError(f"{number} is not between 0 and 2**32 - 1")
    return number


def decay(text: str) -> float:
    """Read a number from 0 up to, but not including, 1: at 1 the average would never move."""
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= number < 1:
        raise ArgumentTypeError(f"{text} is not at least 0 and below 1")
    return number


def precision(text: str) -> str:
    """Read a precision that MixedPrecision knows."""
    if text not in PRECISIONS:
        raise ArgumentTypeError(f"{text!r} is none of {', '.join(PRECISIONS)}")
    return text


def device(text: str) -> str:
    """Read the name of a device on which a tensor can be made here."""
    try:
        torch.empty((), device=text)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentTypeError(f"no tensor can be made on {text!r}: {str(error).splitlines()[0]}") from None
    return text


def engine(text: str) -> str:
    """Read which of the two interpreters trains.

    >>> engine("pure")
    'pure'
    """
    if text not in ENGINES:
        raise ArgumentTypeError(f"{text!r} is none of {', '.join(ENGINES)}")
    return text


READERS: dict[str, tuple[Callable[[str], object] | None, str]] = {
    "epochs": (positive, "passes over the training images"),
    "precision": (
        precision,
        f"dtype of forward and loss, one of {', '.join(PRECISIONS)}; fp16 is slow on a CPU",
    ),
    "decay": (decay, "how much of the averaged weights each step keeps: at least 0, below 1"),
    "accumulate": (positive, "micro-batches in one optimizer step"),
    "seed": (seed, "decides the split, the first weights and the order of the images"),
    "out": (Path, "folder for the files that are written"),
    "device": (device, "where to train, as torch names it"),
    "engine": (engine, f"what trains, one of {', '.join(ENGINES)}; the outcome is the same"),
    "resume": (None, "go on with the run whose checkpoints are in the folder"),
}


def add_options(parser: ArgumentParser, of: type[Options | SweepOptions] = Options) -> None:
    """Give a parser one option for each field, with the field's default.

    >>> parser = ArgumentParser()
    >>> add_options(parser)
    >>> options_of(parser.parse_args(["--epochs", "3"]), Options).epochs
    3
    """
    for field in fields(of):
        reader, told = READERS[field.name]
        if reader is None:
            parser.add_argument(f"--{field.name}", action="store_true", help=told)
        else:
            told += " (default: %(default)s)"
            parser.add_argument(f"--{field.name}", type=reader, default=field.default, help=told)


def options_of(arguments: Namespace, of: type[Settings]) -> Settings:
    """Return what was parsed as options."""
    return of(**{field.name: getattr(arguments, field.name) for field in fields(of)})
