"""What `fit` validates: averages from their first update on, and the history says which."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functrain import EMA, Accumulate, Shell, fit
from tests.scalars import Weight, sgd_shell
from tests.scripted import pair_shell


def fitted(shell: Shell, epochs: int, **options: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """Fit epochs of one batch of gradient -1; return the weights that were validated, and the records."""
    seen: list[Any] = []

    def validate(model: Any) -> float:
        seen.append(_weights(model))
        return 0.0

    def loss(model: Any, slope: float) -> Any:
        return model(slope) if isinstance(model, Weight) else sum(each(slope) for each in model.values())

    history = fit(shell, [-1.0], loss, epochs, validate=validate, progress=False, **options)
    return seen, history.validations


def _weights(model: Any) -> Any:
    return model.w.item() if isinstance(model, Weight) else {key: each.w.item() for key, each in model.items()}


@given(start=st.integers(0, 5), every=st.integers(1, 3), epochs=st.integers(0, 6))
def test_the_average_is_used_from_its_first_update_on(start: int, every: int, epochs: int) -> None:
    """Before it the raw weights are validated; each record says what was."""
    shell = sgd_shell(Weight(), EMA(decay=0.5, start_step=start, update_every=every))
    seen, records = fitted(shell, epochs)
    first = max(start, 1) + -max(start, 1) % every
    used = ["ema" if step >= first else "raw" for step in range(1, epochs + 1)]
    assert [each["validated_with"] for each in records] == used
    raw = [float(step) for step in range(1, epochs + 1)]
    assert [w == r for w, r in zip(seen, raw, strict=True)] == [
        name == "raw" or step == first for step, name in enumerate(used, start=1)
    ]


def test_a_run_without_averages_says_nothing() -> None:
    """A pipeline that keeps no average has nothing to tell."""
    assert fitted(sgd_shell(Weight(), Accumulate(every=1)), 1)[1] == [{"total_loss": 0.0, "epoch": 0, "step": 1}]


def test_each_model_says_what_was_used() -> None:
    """Of several models by key: one whose average waits and one without an average are raw."""
    shell = pair_shell([EMA(model_key="a", decay=0.5, start_step=2)])
    seen, records = fitted(shell, 3)
    assert [each["validated_with"] for each in records] == [
        {"a": "raw", "b": "raw"},
        {"a": "ema_a", "b": "raw"},
        {"a": "ema_a", "b": "raw"},
    ]
    assert seen[-1] == {"a": 2.5, "b": 3.0}


@pytest.mark.parametrize(("name", "used"), [("fast", ["fast", "fast"]), ("slow", ["raw", "slow"])])
def test_the_average_that_is_asked_for_is_waited_for(name: str, used: list[str]) -> None:
    """Another average of the model, although updated, does not step in."""
    hooks = [EMA(decay=0.5, name="fast"), EMA(decay=0.75, name="slow", start_step=2)]
    _, records = fitted(sgd_shell(Weight(), hooks), 2, validate_with=name)
    assert [each["validated_with"] for each in records] == used


def test_what_was_used_is_no_score() -> None:
    """The picture of a run draws the scores only, and a summary that has the same key does not hide it."""
    shell = sgd_shell(Weight(), EMA(decay=0.5))
    history = fit(
        shell, [1.0], lambda m, x: m(x), 1, validate=lambda _: {"acc": 1.0, "validated_with": 2.0}, progress=False
    )
    assert history.validations[0]["validated_with"] == "ema"
    assert [line.get_label() for line in history.plot().axes[1].get_lines()] == ["acc"]


def test_hooks_and_schedulers_see_the_scores_alone() -> None:
    """``state.validation`` is what the validation returned."""
    shell = sgd_shell(Weight(), EMA(decay=0.5))
    fitted(shell, 1)
    assert dict(shell.state.validation) == {"total_loss": 0.0}
