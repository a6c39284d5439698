"""Views of states, differences and pipelines."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given

from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    ClipValue,
    Shell,
    SkipNonFinite,
    Stage,
    TrainState,
    _tree,
    fold,
    hook,
    prioritized,
    show,
)
from functrain.testing import pipelines, states
from tests.show.reading import Unreadable, parsed

PIPELINE = fold(Accumulate(every=2), ClipNorm(max_norm=1.0), SkipNonFinite(), EMA())


def collapsed(text: str) -> str:
    """Return a text without the spaces that lay it out."""
    return re.sub(r"\s+", "", text)


def assert_twins(view: Any) -> None:
    """The HTML is well formed and says every word that the text says."""
    page = parsed(view.html())
    words = collapsed(page.words)
    cells = (cell for line in str(view).splitlines() for cell in re.split(r"\s{2,}", line))
    assert all(collapsed(cell) in words for cell in cells if not cell.startswith("--"))


@given(states(PIPELINE))
def test_a_state_shows_every_leaf_in_both_twins(state: TrainState) -> None:
    """Each path of the state is in the text, and each word of the text in the HTML."""
    view = show.state(state)
    assert_twins(view)
    lines = {line.strip().split("  ")[0] for line in str(view).splitlines()}
    assert {*_tree.paths(state)} <= lines


@given(states(PIPELINE), states(PIPELINE))
def test_a_difference_is_what_differs(one: TrainState, other: TrainState) -> None:
    """Nothing between a state and itself; between two, paths of the one or the other."""
    assert show.diff(one, one).shown.rows == ()
    assert show.diff(one, one, stats=True).shown.rows == ()
    view = show.diff(one, other, stats=True)
    assert "cannot be shown" not in str(view)
    assert_twins(view)


@given(pipelines())
def test_a_pipeline_shows_every_member(pipeline: Any) -> None:
    """A column a hook, under its name, and every stage that somebody claims."""
    view = show.pipeline(pipeline)
    assert view.shown.heads == ("hook", *(each.name for each in pipeline))
    claimed = {stage.name for stage in Stage if pipeline.claimants(stage)}
    assert claimed == {row[0] for row in view.shown.rows} - {"priority", "reads", "writes", "publishes"}
    assert_twins(view)


def test_what_is_equal_is_left_out_of_a_difference() -> None:
    """One counter and one weight changed: two rows, and a weight that was only copied is none with stats."""
    before = TrainState(params={"main": {"a": torch.zeros(2), "b": torch.ones(2)}})
    weights = {"main": {"a": torch.ones(2), "b": torch.ones(2)}}
    after = before.replace(params=weights, clock=before.clock.replace(step=1))
    assert [row[0] for row in show.diff(before, after, stats=True).shown.rows] == [
        'state.params["main"]["a"]',
        "state.clock.step",
    ]
    assert [row[0] for row in show.diff(before, after).shown.rows] == [
        'state.params["main"]["a"]',
        'state.params["main"]["b"]',
        "state.clock.step",
    ]


def test_no_value_is_asked_for_without_stats() -> None:
    """A tensor that raises when it is read is shown, and with stats it says why it is not measured."""
    leaf = torch.ones(3).as_subclass(Unreadable)
    state = TrainState(params={"main": {"weight": leaf}}, metrics={"grad_norm": leaf.sum()})
    other = state.replace(metrics={"grad_norm": leaf.sum() + 1})
    for view in (show.state(state), show.diff(state, other), show.state(state, stats=True)):
        assert "cannot be shown" not in str(view)
        assert view.html()
    assert "unread (RuntimeError)" in str(show.state(state, stats=True))
    assert "unread" not in str(show.state(state))


def test_meta_tensors_are_shown() -> None:
    """They have a shape and no value."""
    state = TrainState(params={"main": {"weight": torch.ones(3, device="meta")}})
    assert 'state.params["main"]["weight"]  (3,) float32 meta' in str(show.state(state))
    assert "unread" in str(show.state(state, stats=True))
    assert show.diff(state, TrainState(), stats=True).shown.rows[0][2] == "missing"


def test_what_cannot_be_shown_says_so() -> None:
    """An object that raises whatever it is asked does not stop the program."""

    class Broken:
        def __getattribute__(self, name: str) -> Any:
            msg = f"no {name}"
            raise ValueError(msg)

    for view in (show.state({"a": Broken()}), show.diff({"a": Broken()}, {"a": 1}), show.pipeline(Broken())):
        assert str(view)
        parsed(view.html())
    assert str(show.pipeline(3)).startswith("cannot be shown  TypeError")


def test_names_are_escaped() -> None:
    """A parameter may be named like markup."""
    page = parsed(show.state({"<script>x</script>": 1}).html())
    assert "<script>" in page.words


def test_order_conflicts_have_reasons() -> None:
    """Two writers of one priority, and a writer before the mean of the window; not the usual order."""
    assert show.pipeline(PIPELINE).shown.warnings == ()
    (same,) = show.pipeline([ClipNorm(max_norm=1.0), ClipValue(clip_value=1.0)]).shown.warnings
    assert "the order in which they were given decides" in same
    (early,) = show.pipeline([Accumulate(every=2), prioritized(5, ClipNorm(max_norm=1.0))]).shown.warnings
    assert "'clip' (priority 5) writes grads before 'accumulate' (priority 10)" in early


def test_a_hook_of_ones_own_may_veto_and_change_the_loss() -> None:
    """Nobody knows better before it runs."""

    @hook(stages={Stage.DO_BACKWARD, Stage.AFTER_OPTIMIZER_STEP})
    def mine(state: TrainState, stage: Stage, will_skip: Any) -> Any:
        return state, True, state.loss

    marks = {row[0]: row[1] for row in show.pipeline(mine).shown.rows}
    assert (marks["DO_BACKWARD"], marks["AFTER_OPTIMIZER_STEP"]) == ("x v l", "x")


@pytest.mark.parametrize("name", ["state", "pipeline", "snapshot"])
def test_notebooks_show_what_a_shell_is_made_of(name: str) -> None:
    """State, pipeline and snapshot have an HTML of their own, well formed."""
    model = torch.nn.Linear(2, 1)
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), PIPELINE)
    with shell.batch():
        shell.update(model(torch.ones(1, 2)).sum())
    shown = shell.snapshot() if name == "snapshot" else getattr(shell, name)
    page = parsed(shown._repr_html_())
    assert "cannot be shown" not in page.words
    assert {"table"} <= {*page.tags} if name == "pipeline" else {"details"} <= {*page.tags}
