"""A violation can be seen again: by Hypothesis's blob, by a snippet, and out of a file."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Verbosity, given, reproduce_failure, settings

from functrain import EMA, Accumulate, FixedLimit, Hook, SkipSpikes, Stage, TrainState, every, fold, named, on, when
from functrain.testing import Breach, Law, LawViolation, Scene, check_hook, laws, replay, scene_source, scenes
from functrain.testing.drawn_hooks import odd_batch, tokens
from functrain.testing.hook_record import hook_of_record, hook_record
from tests.testing.own_project import python, write_project
from tests.testing.user_hooks import USER_HOOKS, gradient_noise


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with hooks, importable in this process too."""
    folder = write_project(tmp_path_factory.mktemp("project"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
    sys.modules.pop("own_hooks", None)


@pytest.fixture(scope="module")
def violation(project: Path) -> LawViolation:
    """Return what a broken hook of the project is told."""
    hook = importlib.import_module("own_hooks").halve
    return check_hook(hook, laws=[laws.PURITY], seed=0, if_broken="return").violations[0]


def test_the_snippet_raises_the_violation_in_a_process_of_its_own(project: Path, violation: LawViolation) -> None:
    """It imports what it needs."""
    done = python(project, "-c", violation.snippet())
    assert done.returncode == 1
    last = [line for line in done.stderr.splitlines() if "LawViolation" in line][-1]
    assert last == f"functrain.testing.violation.LawViolation: {violation.headline()}"


def test_the_snippet_is_short(violation: LawViolation) -> None:
    """Imports, the hook, the scene, the check."""
    assert "hook = own_hooks.halve" in violation.snippet().splitlines()
    assert violation.snippet().splitlines()[-1] == "laws.PURITY.check(scene)"
    assert len(violation.snippet().splitlines()) <= 20


def test_a_hook_without_an_import_path_is_left_to_the_reader() -> None:
    """The snippet says so, and compiles."""

    def local(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        return state, True, None

    found = check_hook(local, laws=[laws.CONTRACT], if_broken="return", seed=0).violations[0]
    assert "# hook = ...: put 'local' here. " in found.snippet()
    with pytest.raises(NameError, match="'hook'"):
        exec(compile(found.snippet(), "snippet", "exec"), {})  # noqa: S102 - our own text


def test_a_law_of_ones_own_is_left_to_the_reader() -> None:
    """By its name."""
    law = Law("mine", "says nothing", lambda _: None)
    scene = Scene(Hook(), TrainState(), Stage.DO_BACKWARD, will_skip=False)
    assert "# law = ...: put 'mine' here" in LawViolation(law, scene, Breach("wrong")).snippet()


def test_the_blob_reproduces_the_failure_in_a_test(violation: LawViolation) -> None:
    """The line decorates a test of scenes, which then fails at once."""
    line = str(violation.blob).removeprefix("@").split(" as a")[0]
    decorate: Any = eval(line, {"reproduce_failure": reproduce_failure})  # noqa: S307 - our own text

    @decorate
    @settings(database=None, verbosity=Verbosity.quiet, suppress_health_check=list(HealthCheck))
    @given(scene=scenes(violation.scene.hook))
    def check(scene: Scene) -> None:
        laws.PURITY.check(scene)

    with pytest.raises(LawViolation, match="L2 purity"):
        check()


def test_a_file_raises_the_same_violation(violation: LawViolation, tmp_path: Path) -> None:
    """Same law, place and values, with the hook by its name and with one that is given."""
    path = violation.save(tmp_path / "deep" / "violation.json")
    for given_hook in (None, violation.scene.hook):
        with pytest.raises(LawViolation) as caught:
            replay(path, given_hook)
        assert str(caught.value) == "\n".join(str(violation).splitlines())
        assert scene_source(caught.value.scene) == scene_source(violation.scene)


def test_a_file_is_replayed_in_a_process_of_its_own(violation: LawViolation, project: Path, tmp_path: Path) -> None:
    """As in a notebook."""
    path = violation.save(tmp_path / "violation.json")
    done = python(project, "-c", f"from functrain.testing import replay; replay({str(path)!r})")
    assert done.returncode == 1
    assert violation.headline() in done.stderr


def test_a_hook_that_was_mended_is_not_told_anything(violation: LawViolation, tmp_path: Path) -> None:
    """The law is checked again, on the hook that is given."""
    path = violation.save(tmp_path / "violation.json")

    def halve(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        return state, True, state.loss

    assert replay(path, halve) is None


def test_with_a_hook_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name in the file is not looked at; without a hook the module is imported, and runs."""
    (tmp_path / "traced_module.py").write_text("from functrain import Hook\n\nclass Kept(Hook):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = importlib.import_module("traced_module").Kept()
    scene = Scene(kept, TrainState(), Stage.DO_BACKWARD, will_skip=False)
    path = LawViolation(laws.PURITY, scene, Breach("a false alarm")).save(tmp_path / "violation.json")
    monkeypatch.delitem(sys.modules, "traced_module")
    replay(path, kept)
    assert "traced_module" not in sys.modules
    replay(path)
    assert "traced_module" in sys.modules


def test_a_local_hook_has_to_be_given(tmp_path: Path) -> None:
    """The file says why it cannot name it."""

    def local(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        return state, True, None

    found = check_hook(local, laws=[laws.CONTRACT], if_broken="return", seed=0).violations[0]
    path = found.save(tmp_path / "violation.json")
    with pytest.raises(ValueError, match=r"it is local.*write replay\(path, hook=\.\.\.\)"):
        replay(path)
    with pytest.raises(LawViolation, match="the loss was dropped"):
        replay(path, local)


def test_a_law_of_ones_own_has_to_be_given(tmp_path: Path) -> None:
    """Also one that has the name of another."""

    def check(_: Scene) -> None:
        raise Breach("wrong")

    law = Law("L2 purity", "says nothing", check)
    scene = Scene(Hook(), TrainState(), Stage.DO_BACKWARD, will_skip=False)
    path = LawViolation(law, scene, Breach("wrong")).save(tmp_path / "violation.json")
    with pytest.raises(ValueError, match=r"'L2 purity' is no law of functrain.testing.laws; write replay\(path, law="):
        replay(path)
    with pytest.raises(LawViolation, match="wrong"):
        replay(path, law=law)


@pytest.fixture
def saved(violation: LawViolation, tmp_path: Path) -> Path:
    """Return the path of a file."""
    return violation.save(tmp_path / "violation.json")


def test_a_file_that_was_cut_is_refused(saved: Path) -> None:
    """Wherever the cut is."""
    text = saved.read_text()
    for length in (0, 1, len(text) // 2, len(text) - 3):
        saved.write_text(text[:length])
        with pytest.raises(ValueError, match="is damaged or no file of a violation"):
            replay(saved)


def test_a_file_that_was_changed_is_refused(saved: Path) -> None:
    """Another stage, with the JSON intact."""
    text = saved.read_text()
    assert text.count('"DO_OPTIMIZER_STEP"') == 1
    saved.write_text(text.replace('"DO_OPTIMIZER_STEP"', '"DO_BACKWARD"'))
    with pytest.raises(ValueError, match="is damaged: its content is not what was written"):
        replay(saved)


@pytest.mark.parametrize("content", [b"[]", b"3", b'{"format": "another"}', b"\xff\xfe\x00", b"[" * 100_000])
def test_a_foreign_file_is_refused(content: bytes, tmp_path: Path) -> None:
    """JSON of something else, bytes, and what would exhaust the stack."""
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no file of a violation"):
        replay(path)


def test_a_file_that_is_not_there_is_an_oserror(tmp_path: Path) -> None:
    """As everywhere."""
    with pytest.raises(FileNotFoundError):
        replay(tmp_path / "nothing")


@pytest.mark.parametrize(
    "record",
    [
        {"class": "subprocess:Popen", "fields": {"args": "true"}},
        {"class": "functrain:no_such_name", "fields": {}},
        {"class": "no_such_module_anywhere:A", "fields": {}},
        {"class": "functrain", "fields": {}},
        {"decorated": "os:system", "fields": {}},
        {"class": "functrain.hooks.ema:EMA", "fields": {"decay": 2.0}},
        {"class": "functrain.hooks.ema:EMA", "fields": {"no_such_field": 2.0}},
        {"class": "functrain.hooks.spike_statistics:FixedLimit", "fields": {"limit": 2.0}},
        {"function": "os:system", "fields": {}},
        {"tensor": {"dtype": "float32", "shape": [], "data": "AAAAAA=="}},
    ],
    ids=str,
)
def test_a_file_that_names_no_hook_is_refused(record: Any) -> None:
    """Nothing but classes of hooks and of their configuration is called."""
    with pytest.raises(ValueError):  # noqa: PT011 - the reasons differ
        hook_of_record(record)


NAMED_HOOKS: tuple[Hook, ...] = (
    *USER_HOOKS,
    EMA(decay=0.5, model_key="teacher"),
    SkipSpikes(by=FixedLimit(limit=float("inf")), drop=True, max_consecutive=None),
    Accumulate(every=2, weight=tokens),
    when(odd_batch, EMA(update_every=2)),
    every(2, on("*weight", named("again", EMA()))),
    named("noise", gradient_noise),
    fold(EMA(), gradient_noise, Accumulate(every=3)),
)


@pytest.mark.parametrize("hook", NAMED_HOOKS, ids=lambda hook: hook.name)
def test_a_hook_comes_back(hook: Hook) -> None:
    """As data it is text; built again it is equal."""
    again = hook_of_record(json.loads(json.dumps(hook_record(hook))))
    assert again == hook
    assert type(again) is type(hook)


@pytest.mark.parametrize("hook", NAMED_HOOKS, ids=lambda hook: hook.name)
def test_the_source_of_a_hook_builds_it(hook: Hook) -> None:
    """A snippet for any of them evaluates to it."""
    scene = Scene(hook, TrainState(), Stage.DO_BACKWARD, will_skip=False)
    text = LawViolation(laws.PURITY, scene, Breach("a false alarm")).snippet()
    names: dict[str, Any] = {}
    exec(compile(text.rpartition("\n")[0], "snippet", "exec"), names)  # noqa: S102 - our own text
    assert names["hook"] == hook
    assert scene_source(names["scene"]) == scene_source(scene)
