"""How far a run has come is seen in a terminal, in a notebook and in a log file, and on one rank only."""

from __future__ import annotations

import io
import subprocess
import sys
import types
from typing import Any

import pytest
import tqdm.std

from functrain import fit
from functrain.shell import progress as module
from functrain.shell.progress import Bar, Lines, Progress, progress
from tests.scalars import Weight, sgd_shell


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: Any, batches: int = 3, **options: Any) -> str:
    """Return what a run writes to a stream."""
    monkeypatch.setattr(sys, "stderr", stream)
    shell = sgd_shell(Weight(), [])
    shell._driver.state = shell.state.replace(rank=options.pop("rank", 0))
    fit(shell, options.pop("loader", [2.0] * batches), lambda model, slope: model(slope), 2, **options)
    return stream.getvalue() if stream else ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds pass each time somebody asks."""
    seconds = iter(range(0, 10_000, 10))
    monkeypatch.setattr(module, "monotonic", lambda: float(next(seconds)))


def test_a_terminal_gets_a_bar_that_ends_with_the_last_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn over itself."""
    text = shown(monkeypatch, Terminal())
    assert "\r" in text
    last = text.splitlines()[-1]
    assert "6/6" in last
    assert last.endswith("loss=-20, steps=6, skips=0]")


def test_a_log_file_gets_plain_lines_and_the_end(monkeypatch: pytest.MonkeyPatch, clock: None) -> None:
    """One every thirty seconds, without a carriage return; each is complete when it is written."""
    lines = shown(monkeypatch, io.StringIO(), batches=4).splitlines(keepends=True)
    assert all(each.endswith("\n") and "\r" not in each for each in lines)
    assert [each.split(" ")[0] for each in lines] == ["3/8", "5/8", "7/8", "8/8"]
    assert [each.split("loss=")[1] for each in lines[-2:]] == ["-24, steps=7, skips=0]\n", "-28, steps=8, skips=0]\n"]


def test_a_short_run_leaves_one_line_in_a_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What took no time needs no report on its way."""
    (line,) = shown(monkeypatch, io.StringIO()).splitlines()
    assert line.startswith("6/6 [")


def test_a_loader_without_a_length_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows how long it will take."""

    class Loader:
        def __iter__(self) -> Any:
            return iter([1.0, 2.0])

    (line,) = shown(monkeypatch, io.StringIO(), loader=Loader()).splitlines()
    assert line.startswith("4/? [")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize("options", [{"rank": 1}, {"progress": False}])
def test_other_ranks_and_who_wants_none_are_silent(stream: Any, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks would write eight bars over each other."""
    assert shown(monkeypatch, stream(), **options) == ""


def test_the_environment_can_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name that tqdm gave it."""
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert shown(monkeypatch, io.StringIO()) == ""


def test_without_a_console_there_is_nothing_to_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without one have no stderr."""
    assert shown(monkeypatch, None) == ""


class Kernel(types.ModuleType):
    """IPython, as it is in a kernel."""

    def get_ipython(self) -> Any:
        """Return an application with the kernel's settings."""
        return types.SimpleNamespace(config={"IPKernelApp": {}})


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a kernel, whose stderr is no terminal, as it is none in a test."""
    monkeypatch.setitem(sys.modules, "IPython", Kernel("IPython"))


def test_a_notebook_without_widgets_gets_the_text_bar(
    notebook: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Warnings are errors here: none is given, and the module that would give one is not imported."""
    for name in ("ipywidgets", "tqdm.auto", "tqdm.autonotebook", "tqdm.notebook"):
        monkeypatch.setitem(sys.modules, name, None)
    with progress(2, lambda: {"loss": 1}) as bar:
        bar.advance()
    assert isinstance(bar, Bar)
    assert type(bar._bar) is tqdm.std.tqdm
    assert "1/2" in capsys.readouterr().err


def test_a_notebook_with_widgets_gets_their_bar(notebook: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tqdm chooses there."""
    made: list[Any] = []
    auto: Any = types.ModuleType("tqdm.auto")
    auto.tqdm = lambda **options: made.append(options) or tqdm.std.tqdm(**options)
    monkeypatch.setitem(sys.modules, "ipywidgets", types.ModuleType("ipywidgets"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", auto)
    progress(2).close(reads=False)
    assert made == [{"total": 2, "unit": "batch"}]


def test_an_ipython_terminal_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython alone makes no notebook, and neither does importing it in a script."""
    for found in (types.SimpleNamespace(config={}), None):
        kernel = Kernel("IPython")
        monkeypatch.setattr(kernel, "get_ipython", lambda found=found: found)
        monkeypatch.setitem(sys.modules, "IPython", kernel)
        assert not module.in_notebook()


def test_texts_are_made_only_when_they_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """They read a device: once a line, here once in all, and never after an exception."""
    asked: list[int] = []
    with progress(1000, lambda: {"asked": asked.append(1)}) as lines:
        for _ in range(1000):
            lines.advance()
    assert (type(lines), len(asked)) == (Lines, 1)
    broken = progress(5, lambda: {"asked": asked.append(1)})
    broken.advance()
    broken.__exit__(KeyError, KeyError(), None)
    assert len(asked) == 1
    assert [each.split(" ")[0] for each in capsys.readouterr().err.splitlines()] == ["1000/1000", "1/5"]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_run_without_a_batch_makes_no_texts(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no loss to tell."""
    monkeypatch.setattr(sys, "stderr", stream())
    with progress(0, lambda: pytest.fail("nothing to tell")) as bar:
        pass
    assert bar.count == 0


def test_nothing_that_warns_in_notebooks_is_imported_with_the_package() -> None:
    """`tqdm.auto` looks for widgets when it is imported, and complains if there are none."""
    code = "import sys; from functrain import fit, pure; pure.sweep; print('tqdm.auto' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_counter_that_shows_nothing_counts() -> None:
    """It stands where a bar is hidden."""
    with Progress() as counter:
        counter.advance()
        counter.advance()
    assert counter.count == 2
