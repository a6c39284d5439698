import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from functrain import Stage
from tests.testing.own_project import python

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


def test_the_code_prints_what_is_shown(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code runs as it stands, from top to bottom, and the output below each block is its own."""
    monkeypatch.chdir(tmp_path)
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


def test_the_laws_say_what_is_shown(text: str, tmp_path: Path) -> None:
    """The hook breaks the laws that are shown, and the program that is shown raises the violation."""
    (console,), (hook,) = blocks(text, "console"), blocks(text, "py")
    command, *shown = console.splitlines()
    (tmp_path / "my_hooks.py").write_text(hook, encoding="utf-8")
    assert command.startswith("$ functrain ")
    done = python(tmp_path, "-m", "functrain", *command.split()[2:])
    assert (done.returncode, done.stderr) == (1, "")
    found = [line.rstrip() for line in done.stdout.splitlines()]
    for place in ("  L", "  the law", "L2 purity: "):  # how far a state is shrunk, and after how many, is Hypothesis's
        said = [stable(line) for line in shown if line.startswith(place)]
        assert said
        assert [stable(line) for line in found if line.startswith(place)] == said
    program = "\n".join(line[4:] for line in shown[shown.index("To see it again, run") + 1 :])
    again = python(tmp_path, "-c", program)
    assert f"LawViolation: {next(line for line in shown if line.startswith('L2 purity: '))}" in again.stderr


def stable(line: str) -> str:
    """Return a line without the number of examples and without the place in a state."""
    return re.sub(r" at state\..*", "", re.sub(r"\s+\d*\s+", " ", line))
