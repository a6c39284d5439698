"""check_hook, its report, and what a violation tells."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import reproduce_failure

import functrain.testing
from functrain import EMA, Hook, SkipNonFinite, Stage, TrainState, hook
from functrain.testing import (
    LAWS,
    LawViolation,
    Scene,
    check_hook,
    check_pipeline,
    evaluated,
    laws,
    scene_source,
    states,
)
from tests.testing.broken.making import BACKWARD, STEP


@hook(stages=STEP, writes={"grads"})
def halve(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Halve gradients in place, whatever was said."""
    for held in state.grads.values():
        for grad in held.values():
            grad.data.mul_(0.5)
    return state, True, state.loss


@pytest.fixture(scope="module")
def violation() -> LawViolation:
    """Return what a broken hook is told."""
    with pytest.raises(LawViolation) as caught:
        check_hook(halve, laws=[laws.CONTRACT, laws.PURITY, laws.VETO_SAFETY], seed=0)
    return caught.value


def test_the_first_broken_law_is_told_in_full(violation: LawViolation) -> None:
    """Law, path as source text, and both values."""
    assert violation.law is laws.PURITY
    assert re.fullmatch(r'state\.grads\["\w+"\]\["[\w.]+"\]', violation.path)
    assert not torch.equal(violation.expected, violation.found)
    for part in ("L2 purity", violation.path, "expected: torch.tensor(", "found: torch.tensor("):
        assert part in str(violation)


def test_every_broken_law_is_named(violation: LawViolation) -> None:
    """The report is in the message, with a row for each law that was asked for."""
    assert violation.report is not None
    assert violation.report.broken == ("L2 purity", "L6 veto safety")
    assert [row.status for row in violation.report] == ["kept", "BROKEN", "BROKEN"]
    assert str(violation.report) in str(violation)


def test_the_witness_is_small(violation: LawViolation) -> None:
    """One gradient that matters, and nothing of what does not."""
    grads = [grad for held in violation.scene.state.grads.values() for grad in held.values()]
    assert len(grads) == 1
    text = scene_source(violation.scene)
    assert not any(name in text for name in ("buffers=", "window=", "clock=", "batch=", "scaler=", "loss="))
    assert len(text.splitlines()) <= 12


def test_the_witness_evaluates_to_a_scene_that_breaks_the_law(violation: LawViolation) -> None:
    """What is printed can be pasted."""
    scene = evaluated(scene_source(violation.scene), hook=halve)
    assert isinstance(scene, Scene)
    with pytest.raises(LawViolation) as again:
        violation.law.check(scene)
    assert again.value.path == violation.path


def test_the_blob_is_a_decorator_of_hypothesis(violation: LawViolation) -> None:
    """It names the version and the choices."""
    assert violation.blob is not None
    assert violation.blob.startswith("@reproduce_failure(")
    assert callable(eval(violation.blob[1:].split(" as a")[0], {"reproduce_failure": reproduce_failure}))  # noqa: S307


def test_a_cause_is_kept() -> None:
    """A hook that raises breaks L1, and what it raised is the cause."""

    def explode(_state: TrainState, _stage: Stage, _skip: Any) -> Any:
        msg = "no such luck"
        raise LookupError(msg)

    with pytest.raises(LawViolation, match="LookupError: no such luck") as caught:
        check_hook(explode, max_examples=10, seed=0)
    assert caught.value.law is laws.CONTRACT
    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.report is not None
    assert {row.status for row in caught.value.report} <= {"BROKEN", "not checked", "does not apply", "kept"}
    assert caught.value.report["L3 structure"].status == "not checked"


def test_a_plain_function_is_checked() -> None:
    """A function is a hook."""

    def keep(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        return state, True, state.loss

    assert check_hook(keep, laws=[laws.PURITY], max_examples=5).broken == ()


def test_what_is_no_hook_is_refused() -> None:
    """With the remedy that fold gives."""
    with pytest.raises(TypeError, match=r"did you mean EMA\(\)"):
        check_hook(EMA)


def test_a_hook_that_refuses_every_state_is_told_what_to_give() -> None:
    """A model that no drawn state has."""
    with pytest.raises(ValueError, match=r"check_hook\(hook, states=states\("):
        check_hook(EMA(model_key="student"), max_examples=5)
    given = states(models=["main", "student"])
    assert check_hook(EMA(model_key="student"), states=given, laws=[laws.CONTRACT], max_examples=5).broken == ()


def test_the_same_seed_draws_the_same_scenes() -> None:
    """The report says which seed it was; it is enough to see the same violation again."""
    first = check_hook(halve, laws=[laws.PURITY], if_broken="return")
    again = check_hook(halve, laws=[laws.PURITY], if_broken="return", seed=first.seed)
    assert scene_source(first.violations[0].scene) == scene_source(again.violations[0].scene)


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Hypothesis searches in silence."""
    check_hook(halve, laws=[laws.PURITY], if_broken="return", max_examples=20)
    assert capsys.readouterr() == ("", "")


def test_a_database_keeps_what_failed() -> None:
    """A later search finds it there, and another hook's does not."""
    from hypothesis.database import InMemoryExampleDatabase

    database = InMemoryExampleDatabase()
    assert check_hook(halve, laws=[laws.PURITY], if_broken="return", database=database).broken == ("L2 purity",)
    assert len(database.data) > 0
    once = check_hook(halve, laws=[laws.PURITY], if_broken="return", database=database, max_examples=1)
    assert once.broken == ("L2 purity",)
    assert check_hook(Hook(), laws=[laws.PURITY], database=database, max_examples=5).broken == ()


def test_laws_that_do_not_apply_are_said_not_to() -> None:
    """A hook is no pipeline; a pipeline has the laws of composition."""
    report = check_hook(SkipNonFinite(), laws=[laws.VETO], max_examples=5)
    assert (report["L11 veto"].status, report["L11 veto"].examples) == ("does not apply", 0)
    assert check_pipeline(SkipNonFinite(), laws=[laws.VETO], max_examples=5)["L11 veto"].examples == 5
    with pytest.raises(KeyError, match="L11 veto"):
        report["L99"]


def test_the_report_is_html_without_a_script() -> None:
    """Escaped, and one row a law."""
    report = check_hook(halve, laws=[laws.CONTRACT, laws.PURITY], if_broken="return", max_examples=20)
    page = report._repr_html_()
    assert page.count("<tr>") == 3
    assert "<script" not in page
    assert "writes={&#x27;grads&#x27;}" in page
    assert "state.grads[&quot;" in page


def test_a_dropped_loss_is_told_by_its_name() -> None:
    """The most likely mistake at DO_BACKWARD."""

    def drop(state: TrainState, _stage: Stage, _skip: Any) -> Any:
        return state, True, None

    with pytest.raises(LawViolation, match="the loss was dropped at loss"):
        check_hook(hook(drop, stages=BACKWARD), laws=[laws.CONTRACT], max_examples=20)


def test_laws_have_names_of_their_own() -> None:
    """Reports are addressed by name, and L1 to L14 are there."""
    names = [law.name for law in LAWS]
    assert len(set(names)) == len(names)
    assert {f"L{number}" for number in range(1, 15)} <= {name.split()[0] for name in names}


def test_every_public_name_is_there_and_documented() -> None:
    """``__all__`` is what the package gives."""
    for name in functrain.testing.__all__:
        assert getattr(functrain.testing, name) is not None
        assert (getattr(functrain.testing, name).__doc__ or "").strip(), name


def failing(_state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Raise."""
    raise RuntimeError("broken for good")


def test_a_hook_that_fails_keeps_no_law() -> None:
    """Whatever law was asked for, a hook that raises is told as a violation of the contract, not as kept."""
    for law in (laws.PURITY, laws.FRAME, laws.DONATION):
        with pytest.raises(LawViolation, match="broken for good") as caught:
            check_hook(failing, laws=[law], max_examples=20, seed=0)
        assert caught.value.law is laws.CONTRACT
