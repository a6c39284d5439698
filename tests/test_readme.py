import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from functrain import Stage

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def text() -> str:
    """Return the README."""
    return README.read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_there_are_two_commands(text: str) -> None:
    """One line runs, one line tests, each from nothing; .ci/run takes the second from here."""
    commands = [line for block in blocks(text, "sh") for line in block.splitlines()]
    assert len(commands) == 2
    assert all(line.startswith("python3 -m venv .venv && .venv/bin/pip install ") for line in commands)
    assert commands[0].endswith(".venv/bin/functrain demo")
    assert commands[1].endswith(".venv/bin/pytest")


def test_the_code_prints_what_is_shown(text: str) -> None:
    """The code runs as it stands, from top to bottom, and the output below each block is its own."""
    names: dict[str, object] = {}
    for code, shown in zip(blocks(text, "python"), blocks(text, "text"), strict=True):
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - the code is this repository's own
        assert printed.getvalue() == shown


def test_the_stage_table_is_complete(text: str) -> None:
    """Every stage has a row, in the order in which a run meets them."""
    assert re.findall(r"^\| `([A-Z_]+)` \|", text, flags=re.MULTILINE) == [stage.name for stage in Stage]


def test_every_picture_is_there(text: str) -> None:
    """A picture that the README shows is in the repository."""
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert (README.parent / path).exists()
