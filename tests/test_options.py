"""How options are asked for: a signature that can be read, and a sentence where a name is missing or misspelt."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc

import pytest
from pydantic import ValidationError

from functrain import EMA, ClipNorm, FixedLimit, Hook, TensorFlowWarmup
from functrain._options import options_of, signature_of
from functrain.hooks import LIBRARY


@pytest.mark.parametrize("kind", [Hook, *LIBRARY], ids=lambda kind: kind.__name__)
def test_a_signature_shows_types_and_no_checks(kind: type[Hook]) -> None:
    """What ``help`` shows of a hook names each option once, by name alone, with a type and nothing of pydantic."""
    signature = inspect.signature(kind)
    assert set(signature.parameters) == set(kind.model_fields)
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in signature.parameters.values())
    for word in ("Annotated", "Validator", "FieldInfo", "Pydantic"):
        assert word not in str(signature)
    assert f"{kind.__name__}(*, " in pydoc.render_doc(kind, renderer=pydoc.plaintext)


def test_own_options_come_first() -> None:
    """A reader finds what a class is about before what every hook has."""
    assert list(inspect.signature(ClipNorm).parameters)[:3] == ["max_norm", "norm_type", "name"]
    assert next(iter(inspect.signature(EMA).parameters)) == "decay"


def test_an_option_without_a_name() -> None:
    """A TypeError says what to write, and lists the options."""
    with pytest.raises(TypeError, match=r"EMA takes its options by name: write EMA\(decay=0\.9\).*half_life, warmup"):
        EMA(0.9)  # type: ignore[misc] # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("decai", "did you mean 'decay'\\? the options of EMA: decay"), ("zzz", "the options of EMA: decay, half_life")],
)
def test_a_misspelt_option(given: str, meant: str) -> None:
    """A ValidationError names the nearest option, if one is near, and lists all."""
    with pytest.raises(ValidationError, match=rf"(?s){given}.*EMA has no such option.*{meant}") as caught:
        EMA(**{given: 0.9}, start_step=-1)
    errors = {each["loc"]: (each["type"], each["input"]) for each in caught.value.errors()}
    assert errors == {(given,): ("extra_forbidden", 0.9), ("start_step",): ("greater_than_equal", -1)}


def test_a_hook_is_still_a_value() -> None:
    """Copies, pickles and updated copies of a hook are made as before."""
    hook = EMA(decay=0.5)
    assert copy.deepcopy(hook) == pickle.loads(pickle.dumps(hook)) == EMA.model_validate({"decay": 0.5}) == hook
    assert hook.model_copy(update={"decay": 0.25}).decay == 0.25


def test_a_signature_is_made_of_the_fields() -> None:
    """Defaults are those of the fields, what is required has none, and of an annotation only the type is left."""
    found = signature_of(EMA).parameters
    assert found == inspect.signature(EMA).parameters
    assert (found["decay"].default, found["decay"].annotation) == (0.999, float)
    assert (found["half_life"].default, found["half_life"].annotation) == (None, float | None)
    assert signature_of(ClipNorm).parameters["max_norm"].default is inspect.Parameter.empty
    assert options_of(ClipNorm)[:4] == ["max_norm", "norm_type", "name", "priority"]


def test_statistics_and_formulas_are_asked_for_in_the_same_way() -> None:
    """What a hook is configured with has the same signature and sentences, by the names under which it is given."""
    assert str(inspect.signature(FixedLimit)) == "(*, limit: float)"
    assert str(inspect.signature(TensorFlowWarmup)) == "()"
    with pytest.raises(TypeError, match=r"write FixedLimit\(limit=3\.0\)"):
        FixedLimit(3.0)  # type: ignore[misc] # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"^TensorFlowWarmup takes no options; write TensorFlowWarmup\(\)$"):
        TensorFlowWarmup(3)  # type: ignore[misc] # pyright: ignore[reportCallIssue]
    with pytest.raises(ValidationError, match=r"did you mean 'limit'\? the options of FixedLimit: limit"):
        FixedLimit(limt=3.0)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def test_what_takes_no_options_says_so() -> None:
    """The error is one of the class, and lists nothing."""
    with pytest.raises(ValidationError, match=r"(?s)^1 validation error for TensorFlowWarmup.*: none \[type") as caught:
        TensorFlowWarmup(tau=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    assert caught.value.title == "TensorFlowWarmup"
