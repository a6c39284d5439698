"""What may not stand together in one pipeline, and what the refusal says."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    Hook,
    MixedPrecision,
    SkipNonFinite,
    SkipSpikes,
    Stage,
    TrainState,
    fold,
    named,
    prioritized,
)


def bare(state: TrainState, _stage: Stage, _skip: Any) -> Any:
    """Change nothing."""
    return state, True, state.loss


def raised(*hooks: Any) -> str:
    """Return the message with which a composition is refused."""
    with pytest.raises((TypeError, ValueError)) as caught:
        fold(*hooks)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_class_is_refused_with_what_was_meant() -> None:
    """The parentheses were forgotten."""
    assert raised(Hook(), EMA) == (
        "TypeError: argument 1 of fold must be a hook or a function, got the class EMA; did you mean EMA()?"
    )


@pytest.mark.parametrize(
    ("hooks", "kind"), [([Hook()], "list"), ((Hook(),), "tuple"), (iter([Hook()]), "list_iterator")]
)
def test_a_sequence_is_refused_with_the_star_that_was_forgotten(hooks: Any, kind: str) -> None:
    """A list of hooks is unpacked, not given."""
    assert (
        raised(hooks) == f"TypeError: argument 0 of fold must be a hook or a function, got a {kind}; write fold(*hooks)"
    )


@pytest.mark.parametrize(("value", "kind"), [(3, "int"), (None, "NoneType"), ("ema", "str"), (nn.ReLU(), "ReLU")])
def test_what_is_no_hook_is_refused_with_the_contract(value: Any, kind: str) -> None:
    """Position, type and what to write instead are named; a module is callable and still no hook."""
    found = raised(Hook(), bare, value)
    assert found.startswith(f"TypeError: argument 2 of fold must be a hook or a function, got {kind}; write a function")
    assert found.endswith("(state, stage, will_skip) -> (state, proceed, loss)")


@pytest.mark.parametrize(
    ("first", "second", "family"),
    [
        (Accumulate(every=2), Accumulate(every=4, name="other"), "accumulate"),
        (MixedPrecision(precision="bf16"), named("other", MixedPrecision(precision="fp16")), "precision"),
    ],
)
def test_an_exclusive_family_stands_once(first: Hook, second: Hook, family: str) -> None:
    """Both members are named, under whatever names they stand."""
    kind = type(first).__name__
    assert raised(first, second) == (
        f"ValueError: only one hook of the exclusive family {family!r} may stand in a pipeline; "
        f"got {kind} ({family!r}) and {kind} ('other')"
    )


def test_equal_names_are_refused_with_another_name() -> None:
    """Both are shown, and how to rename one."""
    found = raised(EMA(decay=0.9), EMA(decay=0.5))
    assert found.startswith("ValueError: two hooks are named 'ema': EMA(decay=0.9) and EMA(decay=0.5)")
    assert found.endswith('functrain.named("ema_2", hook)')
    assert len(fold(EMA(decay=0.9), named("ema_2", EMA(decay=0.5)))) == 2


def test_the_same_instance_twice_is_refused() -> None:
    """``a + a`` is no pipeline, also when one of them lies in another pipeline."""
    ema = EMA()
    for hooks in ((ema, ema), (fold(ema), ema)):
        found = raised(*hooks)
        assert found.startswith("ValueError: the same instance EMA() stands twice in one pipeline")
        assert found.endswith('functrain.named("ema_2", hook)')


@pytest.mark.parametrize("reader", [SkipNonFinite(), SkipSpikes()])
def test_who_reads_a_metric_comes_after_who_publishes_it(reader: Hook) -> None:
    """A reader in front of its publisher is refused with the priority that it needs; without one it may stand."""
    early, clip = prioritized(20, reader), ClipNorm(max_norm=1.0)
    assert raised(early, clip) == (
        f"ValueError: {reader.name!r} (priority 20) reads the metric 'grad_norm' before 'clip' (priority 30) "
        f"publishes it; write functrain.prioritized(31, {reader.name})"
    )
    assert len(fold(prioritized(31, early), clip)) == 2
    assert len(fold(early)) == 1
