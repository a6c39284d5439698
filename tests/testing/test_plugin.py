"""The pytest plugin, in projects of its own: a process each, with this functrain and no installed plugin."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from functrain import Stage, TrainState
from functrain.testing import LawViolation, replay
from functrain.testing.comparison import explained
from tests.testing.own_project import python, write_project

EXPLICIT = ("-p", "functrain.testing.plugin")
MARKED = """
import pytest
from own_hooks import Scale, build, halve, keep

FEW = {"laws": ["L1", "L2"], "max_examples": 20}


@pytest.mark.laws(halve, **FEW)
def test_halve():
    ...


@pytest.mark.laws(hook=keep, **FEW)
def test_keep(law):
    print("the law is", law.name)


@pytest.mark.laws(hook=Scale, **FEW)
class TestScale:
    def test_it(self):
        ...


@pytest.mark.laws(hook=build, laws=["L1", "L11 veto", "ema:", "clip:", "accumulate:"], max_examples=5)
def test_build():
    ...


@pytest.mark.laws(build() + keep, laws=["L1"], max_examples=5)
@pytest.mark.parametrize("number", [1, 2])
def test_both(number, law):
    assert number < 2
"""


def project(folder: Path, test: str) -> Path:
    """Write a project with hooks and a test file."""
    (folder / "test_own.py").write_text(test, encoding="utf-8")
    return write_project(folder)


def pytest_in(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest there, with this plugin and no other."""
    return python(folder, "-m", "pytest", *EXPLICIT, *arguments, **{"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables})


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a project with marks, and what pytest printed of it."""
    folder = project(tmp_path_factory.mktemp("marked"), MARKED)
    done = pytest_in(folder, "-v", "-rA", "--strict-markers", "--functrain-profile=ci", "-W", "error")
    assert done.returncode == 1, done.stdout + done.stderr
    return folder, done.stdout


def test_each_law_is_a_test(marked: tuple[Path, str]) -> None:
    """By the name of the law; functions, classes, factories, pipelines; beside another parametrization."""
    outcomes = re.findall(r"^(PASSED|FAILED) test_own.py::(.+?\])", marked[1], flags=re.MULTILINE)
    found = {name: outcome for outcome, name in outcomes}
    assert found == {
        "test_halve[L1 contract]": "PASSED",
        "test_halve[L2 purity]": "FAILED",
        "test_keep[L1 contract]": "PASSED",
        "test_keep[L2 purity]": "PASSED",
        "TestScale::test_it[L1 contract]": "PASSED",
        "TestScale::test_it[L2 purity]": "PASSED",
        "test_build[L1 contract]": "PASSED",
        "test_build[L11 veto]": "PASSED",
        "test_both[L1 contract-1]": "PASSED",
        "test_both[L1 contract-2]": "FAILED",
    }


def test_the_test_itself_runs_after_its_law(marked: tuple[Path, str]) -> None:
    """It is told the law, if it asks."""
    assert "the law is L1 contract" in marked[1]
    assert "assert 2 < 2" in marked[1]


def test_a_violation_is_told_without_a_traceback(marked: tuple[Path, str]) -> None:
    """Law, place, both values, and a program that shows it."""
    told = marked[1].partition("test_halve[L2 purity] _")[2].partition("\n____")[0]
    lines = told.splitlines()
    assert lines[1].startswith("L2 purity: 'halve' at DO_OPTIMIZER_STEP: the input was written to")
    assert 'at state.grads["' in lines[1]
    for part in (
        "  the law: ",
        "  expected: 0",
        "  found: 1",
        "laws.PURITY.check(scene)",
        "replay(",
        "reproduce_failure",
    ):
        assert part in told
    assert "Traceback" not in told
    assert ".py:" not in told.replace("test_own.py_", "")


def test_the_program_that_is_told_shows_the_violation(marked: tuple[Path, str]) -> None:
    """Taken from the screen as it stands."""
    folder, told = marked
    block = re.findall(r"To see it again, run\n\n((?:    .*\n|\n)*?)\nor ", told)[0]
    done = python(folder, "-c", re.sub(r"^    ", "", block, flags=re.MULTILINE))
    assert done.returncode == 1
    assert "LawViolation: L2 purity: 'halve' at DO_OPTIMIZER_STEP" in done.stderr


def test_the_file_that_is_told_shows_the_violation(marked: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in pytest's cache."""
    folder, told = marked
    (path,) = re.findall(r"or functrain.testing.replay\('(.*)'\)", told)
    assert path.startswith(".pytest_cache/")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(LawViolation, match="L2 purity"):
        replay(folder / path)


UNMARKED = """
import sys


def test_nothing_heavy_is_imported():
    heavy = {"torch", "hypothesis", "pydantic", "optree", "numpy"} & {*sys.modules}
    assert not heavy
    assert "functrain.testing.plugin" in sys.modules


def test_a_difference():
    assert {"a": 1} != {"a": 1, "b": 2}
"""


def test_without_a_mark_nothing_is_imported(tmp_path: Path) -> None:
    """Neither torch nor Hypothesis, nor is anything left behind."""
    done = pytest_in(project(tmp_path, UNMARKED), "-q", "--strict-markers", "-W", "error", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"own_hooks.py", "test_own.py"}


def entry_point(folder: Path) -> Path:
    """Write what an installed functrain says of itself, and return the folder to put on the path."""
    info = folder / "site" / "functrain_of_a_test-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: functrain-of-a-test\nVersion: 0.1.0\n")
    (info / "RECORD").write_text("")
    (info / "entry_points.txt").write_text("[pytest11]\nfunctrain = functrain.testing.plugin\n")
    return info.parent


@pytest.mark.parametrize(
    ("arguments", "conftest", "name"),
    [
        ((), "", "functrain"),
        (("-p", "no:functrain"), "", None),
        (EXPLICIT, "", "functrain.testing.plugin"),
        ((), 'pytest_plugins = ["functrain.testing.plugin"]', "functrain"),
    ],
    ids=["alone", "kept away", "-p", "conftest"],
)
def test_the_entry_point(tmp_path: Path, arguments: tuple[str, ...], conftest: str, name: str | None) -> None:
    """It is loaded by itself and once, whoever asks again; ``-p no:functrain`` keeps it away."""
    site = entry_point(tmp_path)
    code = f"""
        import sys

        def test_it(request):
            names = [n for n, p in request.config.pluginmanager.list_name_plugin() if "functrain.testing" in repr(p)]
            assert names == {[name] if name else []!r}
            assert "torch" not in sys.modules
    """
    folder = project(tmp_path, "\n".join(line[8:] for line in code.splitlines()))
    (tmp_path / "conftest.py").write_text(conftest)
    path = f"{site}:{Path(__file__).parents[2]}"
    done = python(folder, "-m", "pytest", "-q", "-W", "error", *arguments, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout


REFUSED = {
    "pytest.mark.laws(3)": "laws are checked on a hook, a pipeline, a class of hooks, or a function",
    "pytest.mark.laws()": "with one hook and not 0",
    "pytest.mark.laws(halve, halve)": "with one hook and not 2",
    "pytest.mark.laws(halve, example=3)": "unknown option example; there are laws, states",
    "pytest.mark.laws(halve, laws=['L99'])": "no law named 'L99'; there are 'L1 contract'",
}


def test_a_mark_that_cannot_work_is_refused(tmp_path: Path) -> None:
    """With the reason, when tests are collected."""
    for place, mark in enumerate(REFUSED):
        test = f"import pytest\nfrom own_hooks import halve\n\n@{mark}\ndef test_it(): ...\n"
        (tmp_path / f"test_{place}.py").write_text(test)
    done = pytest_in(write_project(tmp_path), "-q")
    assert done.returncode == 2
    assert "5 errors" in done.stdout
    assert [said for said in REFUSED.values() if said not in done.stdout] == []
    assert "Traceback" not in done.stdout


def test_a_mark_that_would_check_nothing_is_refused(tmp_path: Path) -> None:
    """Of a method of unittest pytest makes one test only."""
    test = """
import unittest, pytest
from own_hooks import halve

@pytest.mark.laws(halve)
class TestIt(unittest.TestCase):
    def test_it(self): ...
"""
    done = pytest_in(project(tmp_path, test), "-q")
    assert done.returncode == 1
    assert "works on functions and methods of plain classes, not here" in done.stdout


PROFILE = """
import pytest
from hypothesis import settings
from own_hooks import keep
from functrain.testing import Law, Scene

seen = []
current = settings.get_current_profile_name

@pytest.mark.laws(hook=keep, laws=[Law("mine", "counts", lambda scene: seen.append(current()))])
def test_it():
    print("checked", len(seen), "in", *{*seen}, "then", current())
"""

OWN = 'from hypothesis import settings\nsettings.register_profile("dev", max_examples=7, database=None)\n'


LOADED = 'settings.load_profile("dev")\n'


@pytest.mark.parametrize(
    ("conftest", "arguments", "said"),
    [
        ("", (), "checked 50 in dev then default"),
        (OWN + LOADED, ("--functrain-profile=ci",), "checked 100 in ci then dev"),
    ],
    ids=["default", "option"],
)
def test_laws_are_checked_in_a_profile(tmp_path: Path, conftest: str, arguments: tuple[str, ...], said: str) -> None:
    """And whatever else is tested in its own."""
    (tmp_path / "conftest.py").write_text(conftest)
    done = pytest_in(project(tmp_path, PROFILE), "-q", "-rP", *arguments)
    assert said in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("before", "asked", "variables", "said"),
    [
        ("", "None", {}, "dev 50"),
        ("", "'ci'", {"HYPOTHESIS_PROFILE": "thorough"}, "ci 100"),
        ("", "None", {"HYPOTHESIS_PROFILE": "thorough"}, "thorough 1000"),
        ("", "None", {"CI": "true"}, "ci 100"),
        (OWN, "None", {}, "dev 7"),
        (OWN + LOADED, "None", {"CI": "true"}, "dev 7"),
    ],
)
def test_which_profile_is_chosen(tmp_path: Path, before: str, asked: str, variables: dict[str, str], said: str) -> None:
    """By option, variable, what was loaded, CI; a profile that somebody has registered is kept."""
    code = f"""{before}
from functrain.testing.profiles import chosen_profile, profile
with profile(chosen_profile({asked})) as found:
    name = __import__("hypothesis").settings.get_current_profile_name()
    print(name, found.max_examples)
"""
    assert python(tmp_path, "-c", code, **variables).stdout.strip() == said


def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    """With those that functrain brings."""
    done = pytest_in(project(tmp_path, PROFILE), "-q", "--functrain-profile=fast")
    assert done.returncode == 2
    assert "Hypothesis knows no profile 'fast'; functrain brings dev, ci, thorough" in done.stdout


COMPARED = """
import torch
from functrain import FrozenMap, TrainState

def test_states():
    one = TrainState(params={"main": {"w": torch.tensor([0.0, 50.0]), "b": torch.zeros(2)}})
    params = one.params | {"main": one.params["main"] | {"w": torch.tensor([0.0, 51.0])}}
    assert one == one.replace(params=params, rank=1)

def test_maps():
    assert FrozenMap({"step": 1, "same": 2}) == FrozenMap({"step": 2, "same": 2})

def test_others():
    assert {"step": 1} == {"step": 2}
"""


def test_a_comparison_shows_what_differs(tmp_path: Path) -> None:
    """Paths of leaves and static fields; other comparisons are pytest's."""
    done = pytest_in(project(tmp_path, COMPARED), "-q")
    assert "TrainState == TrainState: 2 places differ" in done.stdout
    assert 'left.params["main"]["w"]: torch.tensor([0.0, 50.0]) != torch.tensor([0.0, 51.0])' in done.stdout
    assert "left.rank: 0 != 1" in done.stdout
    assert '["b"]' not in done.stdout.replace('"b": torch.zeros', "")
    assert 'left["step"]: 1 != 2' in done.stdout
    assert '["same"]' not in done.stdout
    assert "Differing items" in done.stdout


def test_a_long_comparison_is_cut() -> None:
    """Twenty paths are shown."""
    one = TrainState(batch={str(number): 0 for number in range(30)})
    lines = explained(one, one.replace(batch={str(number): 1 for number in range(30)}))
    assert lines is not None
    assert (len(lines), lines[-1]) == (22, "... and 10 more")


def test_a_state_equals_only_itself() -> None:
    """Which has to be said where no leaf differs."""
    lines = explained(TrainState(), TrainState())
    assert lines == ["TrainState == TrainState: no places differ; a TrainState equals only itself"]
    assert explained(TrainState(), 3) is None
    assert explained(Stage.SETUP, Stage.SETUP) is None


def test_json_of_the_cache_is_data(marked: tuple[Path, str]) -> None:
    """A hook by its import path."""
    (path,) = (marked[0] / ".pytest_cache" / "d" / "functrain").iterdir()
    assert json.loads(path.read_text())["content"]["hook"] == {"decorated": "own_hooks:halve", "fields": {}}
