from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path

import pytest

from functrain.demo.options import READERS, Options, add_options, options_of


@pytest.fixture
def parser() -> ArgumentParser:
    """Return a parser that knows the options of the demo."""
    parser = ArgumentParser()
    add_options(parser)
    return parser


def test_every_option_has_a_reader() -> None:
    """A field that is added to the options cannot be forgotten on the command line."""
    assert list(READERS) == [field.name for field in fields(Options)]


def test_nothing_given_is_the_default(parser: ArgumentParser) -> None:
    """An empty command line gives the default options."""
    assert options_of(parser.parse_args([]), Options) == Options()


def test_every_option_arrives(parser: ArgumentParser) -> None:
    """Each option sets its field, in the field's type."""
    line = "--epochs 3 --precision fp16 --decay 0.5 --accumulate 4 --seed 7 --out here --device cpu --engine pure"
    line += " --resume"
    expected = Options(3, "fp16", 0.5, 4, 7, Path("here"), "cpu", "pure", resume=True)
    assert options_of(parser.parse_args(line.split()), Options) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--epochs 0", "0 is below 1"),
        ("--epochs many", "'many' is not a whole number"),
        ("--accumulate -1", "-1 is below 1"),
        ("--decay 1", "1 is not at least 0 and below 1"),
        ("--decay nan", "nan is not at least 0 and below 1"),
        ("--decay slow", "'slow' is not a number"),
        ("--seed -1", "-1 is not between 0 and 2**32 - 1"),
        ("--precision int8", "'int8' is none of fp32, bf16, fp16"),
        ("--engine steam", "'steam' is none of shell, pure"),
        ("--device toaster", "no tensor can be made on 'toaster'"),
    ],
)
def test_a_bad_value_is_refused_with_its_reason(
    parser: ArgumentParser, capsys: pytest.CaptureFixture[str], line: str, reason: str
) -> None:
    """A value that cannot work ends the program at once, and the message says why."""
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(line.split())
    assert stop.value.code == 2
    assert reason in capsys.readouterr().err
