"""The command ``functrain laws``: reports, exit statuses, and the test file that it writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from functrain.__main__ import main
from tests.testing.own_project import ROOT, python, write_project

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def functrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Return what runs the command in a project: exit status, output and errors."""
    monkeypatch.chdir(write_project(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["laws", *arguments])
        return status, *capsys.readouterr()

    yield run
    sys.modules.pop("own_hooks", None)


def test_a_broken_law_is_shown(functrain: Run) -> None:
    """A table, the violation, and a program; exit status 1."""
    status, out, err = functrain("own_hooks:halve", "--law", "L2 purity", "--law", "L1", "--profile", "ci")
    assert (status, err) == (1, "")
    rows = [line.split()[:3] for line in out.splitlines() if line.startswith(("  L1 ", "  L2 "))]
    assert rows == [["L2", "purity", "BROKEN"], ["L1", "contract", "kept"]]
    assert "\nL2 purity: 'halve' at DO_OPTIMIZER_STEP: the input was written to" in out
    assert "    laws.PURITY.check(scene)" in out.splitlines()


def test_laws_that_are_kept(functrain: Run) -> None:
    """Exit status 0, so many examples, and no law that says nothing about the hook."""
    status, out, err = functrain("own_hooks:scale", "--law", "L1", "--law", "L11", "--examples", "7")
    assert (status, err) == (0, "")
    assert [line.split()[2:4] for line in out.splitlines() if "L1" in line] == [["kept", "7"]]


@pytest.mark.parametrize("name", ["keep", "Scale", "build"])
def test_other_targets(functrain: Run, name: str) -> None:
    """A function, a class, a factory of a pipeline."""
    assert functrain(f"own_hooks:{name}", "--law", "L1", "--examples", "3")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "which hook? write  functrain laws package.module:hook"),
        (("own_hooks",), "'own_hooks' is no import path; write package.module:name"),
        (("own_hooks:",), "'own_hooks:' is no import path"),
        (("no_hooks:halve",), "cannot import no_hooks: ModuleNotFoundError"),
        (("own_hooks:halved",), "own_hooks has no halved; it has ClipNorm, "),
        (("own_hooks:number",), "laws are checked on a hook, a pipeline, a class of hooks"),
        (("broken_module:hook",), "cannot import broken_module: ZeroDivisionError: division by zero"),
        (("leaving_module:hook",), "leaving_module:hook: importing it ends the program (3)"),
        (("factories:fails",), "factories:fails: LookupError: no luck"),
        (("factories:refuses",), "'ema_nobody' could be prepared for no drawn state"),
        (("own_hooks:halve", "--law", "L99"), "no law named 'L99'; there are 'L1 contract'"),
        (("own_hooks:halve", "--profile", "fast"), "Hypothesis knows no profile 'fast'"),
        (("own_hooks:number", "--write"), "laws are checked on a hook"),
        (("own_hooks:halve", "--write", "no/folder.py"), "cannot write no/folder.py: No such file"),
    ],
    ids=str,
)
def test_what_cannot_be_checked_is_refused(functrain: Run, arguments: tuple[str, ...], said: str) -> None:
    """Exit status 2, one line, no traceback."""
    Path("broken_module.py").write_text("hook = 1 / 0\n")
    Path("leaving_module.py").write_text("raise SystemExit(3)\n")
    Path("factories.py").write_text(
        "from functrain import EMA\n"
        "def fails():\n    raise LookupError('no luck')\n"
        "def refuses():\n    return EMA(model_key='nobody')\n"
    )
    try:
        status, out, err = functrain(*arguments)
    finally:
        sys.modules.pop("factories", None)
    assert (status, out) == (2, "")
    assert err.startswith("functrain laws: ")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not Path("test_laws.py").exists()


@pytest.mark.parametrize("number", ["0", "-3", "many", "1.5"])
def test_a_number_of_examples_is_a_number(functrain: Run, number: str) -> None:
    """As argparse refuses."""
    with pytest.raises(SystemExit, match="2"):
        functrain("own_hooks:halve", f"--examples={number}")


def test_a_test_file_is_written(functrain: Run) -> None:
    """It is short, and what was there is kept until somebody says otherwise."""
    assert functrain("own_hooks:halve", "--write") == (0, "wrote test_laws.py\n", "")
    text = Path("test_laws.py").read_text()
    assert "from own_hooks import halve\n\n\n@pytest.mark.laws(hook=halve)\ndef test_halve() -> None:\n" in text
    Path("test_laws.py").write_text("mine")
    status, _, err = functrain("own_hooks:halve", "--write")
    assert (status, Path("test_laws.py").read_text()) == (2, "mine")
    assert "test_laws.py is there already; give another path, or --overwrite" in err
    assert functrain("own_hooks:halve", "--write", "--overwrite")[0] == 0
    assert Path("test_laws.py").read_text() == text


def test_a_target_may_follow_the_option(functrain: Run) -> None:
    """An import path is no file."""
    assert functrain("--write", "own_hooks:Scale")[1] == "wrote test_laws.py\n"
    assert functrain("--write", "test_scale.py", "own_hooks:Scale")[1] == "wrote test_scale.py\n"
    assert Path("test_laws.py").read_text() == Path("test_scale.py").read_text()
    assert "def test_scale() -> None:" in Path("test_scale.py").read_text()


def test_the_files_that_are_written_are_tests(functrain: Run, tmp_path: Path) -> None:
    """Of a hook that breaks a law, and the one to begin with, which keeps all."""
    functrain("own_hooks:halve", "--write")
    functrain("--write", "test_beginning.py")
    few = ("-k", "contract or purity or structure", "--functrain-profile=ci", "-p", "functrain.testing.plugin")
    done = python(tmp_path, "-m", "pytest", "-q", "-rA", *few, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    lines = done.stdout.splitlines()
    assert any(line.startswith("FAILED test_laws.py::test_halve[L2 purity]") for line in lines)
    assert "PASSED test_laws.py::test_halve[L3 structure]" in lines
    assert "PASSED test_beginning.py::test_scale_loss[L2 purity]" in lines
    assert not any(line.startswith("FAILED test_beginning.py") for line in lines)


def test_the_command_is_a_process(tmp_path: Path) -> None:
    """The current directory is importable, also where Python does not put it on the path."""
    done = python(write_project(tmp_path), "-P", "-m", "functrain", "laws", "own_hooks:scale", "--law=L1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "kept" in done.stdout


def blocked(tmp_path: Path, module: str, *arguments: str) -> tuple[int, str, str]:
    """Run the command where a module is not installed."""
    code = f"""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == {module!r} else found(name, package)
from functrain.__main__ import main
status = main({list(arguments)!r})
assert {module!r} not in sys.modules
sys.exit(status)
"""
    done = python(write_project(tmp_path), "-c", code)
    return done.returncode, done.stdout, done.stderr


def test_without_rich_the_report_is_text(tmp_path: Path) -> None:
    """The table of the report itself."""
    status, out, err = blocked(tmp_path, "rich", "laws", "own_hooks:halve", "--law=L2", "--profile=ci")
    assert (status, err) == (1, "")
    assert out.splitlines()[:2] == ["own_hooks:halve", "law        status  examples  statement"]


def test_without_hypothesis_it_says_what_to_install(tmp_path: Path) -> None:
    """Exit status 2: nothing was checked."""
    status, out, err = blocked(tmp_path, "hypothesis", "laws", "own_hooks:halve")
    assert (status, out) == (2, "")
    assert 'run  pip install "functrain[testing]"' in err


def test_the_other_commands_do_not_import_hypothesis() -> None:
    """Nor does the list of commands, which names this one."""
    code = """
import contextlib, sys
from functrain.__main__ import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
import functrain.demo.trial
print("hypothesis" in sys.modules)
"""
    assert python(ROOT, "-c", code, "demo", "--help").stdout.splitlines()[-1] == "False"
    listed = python(ROOT, "-c", code, "--help").stdout
    assert "    laws      check a hook of your own" in listed.splitlines()
