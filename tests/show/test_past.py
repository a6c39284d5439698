"""The past that a traced pipeline keeps: snapshots within a budget, and what is said when they are gone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import EMA, Accumulate, ClipNorm, Pipeline, SkipNonFinite, Snapshot, pure, show
from functrain._strict import same
from functrain._tree import paths
from functrain.show.past import size_of
from tests.shell.pipelines import optimizers, pipelines, present, run, runs, shell_of
from tests.shell.records import differences, record

BUDGET = 100_000_000
"""Enough for every snapshot of these runs."""


def assert_same(one: Any, other: Any) -> None:
    """Every leaf of the two is bitwise the same."""
    ours, theirs = paths(one), paths(other)
    assert ours.keys() == theirs.keys()
    assert not [path for path in ours if not same(ours[path], theirs[path])]


@given(pipeline=pipelines(), kinds=runs, optimizer=optimizers, strict=st.sampled_from([False] * 9 + [True]))
def test_keeping_the_past_changes_nothing(pipeline: Pipeline, kinds: list[str], optimizer: str, strict: bool) -> None:
    """Any run of a shell comes to the same, bitwise, whether it is traced, keeps snapshots, or neither."""
    found = []
    for hooks in (pipeline, show.trace(pipeline), show.trace(pipeline, budget=BUDGET)):
        shell = shell_of(hooks, optimizer, strict=strict)
        run(shell, kinds)
        found.append(record(shell))
    assert differences(found[0], found[1]) == []
    assert differences(found[0], found[2]) == []


@given(pipeline=pipelines(), kinds=runs, optimizer=optimizers, data=st.data())
def test_a_shell_goes_on_from_any_kept_batch(
    pipeline: Pipeline, kinds: list[str], optimizer: str, data: st.DataObject
) -> None:
    """Restored to a batch of the trace, and run on from there: bitwise the same end."""
    traced = show.trace(pipeline, budget=BUDGET)
    shell = shell_of(traced, optimizer)
    places: list[int] = []
    for place, kind in enumerate(kinds):
        places += [place] if kind != "flush" else []
        present(shell, kind, place)
    there = record(shell)
    if places:
        batch = data.draw(st.integers(0, len(places) - 1))
        shell.restore(traced.trace[batch].snapshot)
        assert shell.state.clock.batch == batch
        run(shell, kinds[places[batch] :], places[batch])
        assert differences(there, record(shell)) == []


def test_a_kept_state_is_that_of_the_moment() -> None:
    """As batch 3 began: its weights, buffers, slots, optimizer and data, whatever was written since."""
    traced = show.trace([Accumulate(every=2), EMA(decay=0.5)], budget=BUDGET)
    shell = shell_of(traced, "adamw")
    run(shell, ["plain"] * 3)
    there, optimizer = shell.snapshot(), shell.snapshot().optimizers
    run(shell, ["plain"] * 5, 3)
    moment = traced.trace[3]
    for name in ("params", "buffers", "grads", "hooks", "scaler"):
        assert_same(getattr(moment.state, name), getattr(there.state, name))
    assert_same(moment.snapshot.optimizers["main"], optimizer["main"])
    assert moment.state.clock.batch == 3
    assert torch.equal(moment.state.batch["x"], torch.randn(4, 3, generator=torch.Generator().manual_seed(3)))
    assert [each.hook for each in moment.events] == ["accumulate"] * 4 + ["ema"]
    assert "DO_OPTIMIZER_STEP" in str(moment)
    assert "<table>" in moment._repr_html_()


def test_old_snapshots_fall_out_first() -> None:
    """A budget of three snapshots keeps the last three; the calls of others are still there."""
    shell = shell_of(show.trace(SkipNonFinite(), budget=BUDGET), "sgd")
    run(shell, ["plain"] * 3)
    size = size_of(shell.pipeline.trace[2].snapshot)
    traced = show.trace(SkipNonFinite(), budget=3 * size + 1)
    run(shell_of(traced, "sgd"), ["plain"] * 8)
    assert traced.trace.kept_batches() == [5, 6, 7]
    assert traced.trace.past.size <= traced.trace.past.budget
    assert traced.trace[1].events
    with pytest.raises(LookupError, match="state of batch 1 is not kept; there are snapshots of batches 5 to 7"):
        _ = traced.trace[1].state
    with pytest.raises(KeyError, match="batch 8 is not in the trace; it holds batches 0 to 7"):
        _ = traced.trace[8]
    assert (list(traced.trace), len(traced.trace)) == ([*range(8)], 8)


def test_without_a_budget_nothing_is_kept() -> None:
    """The calls are there, and the state says why it is not."""
    traced = show.trace(SkipNonFinite())
    run(shell_of(traced), ["plain"])
    with pytest.raises(LookupError, match=r"there are snapshots of no batches: write show.trace\(hooks, budget="):
        _ = traced.trace[0].state


def test_a_budget_below_one_snapshot_is_refused_at_once() -> None:
    """At the first micro-batch, with the size that is needed; with that size it works."""
    with pytest.raises(ValueError, match=r"one snapshot of this run has .* bytes .*, and the budget is 10") as caught:
        run(shell_of(show.trace(ClipNorm(max_norm=1.0), budget=10), "sgd"), ["plain"])
    needed = int(str(caught.value).split(" has ")[1].split(" ")[0].replace(",", ""))
    traced = show.trace(ClipNorm(max_norm=1.0), budget=needed)
    run(shell_of(traced, "sgd"), ["plain"])
    assert traced.trace.kept_batches() == [0]


@pytest.mark.parametrize(("budget", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_budget_is_a_number_of_bytes(budget: Any, error: type[Exception]) -> None:
    """Everything else is refused where the trace is made."""
    with pytest.raises(error, match="budget must be"):
        show.trace(ClipNorm(max_norm=1.0), budget=budget)


def loss_fn(params: Any, buffers: Any, batch: torch.Tensor) -> torch.Tensor:
    """Return a loss of one weight."""
    return (params["weight"] * batch).square().mean()


@pytest.mark.parametrize("donated", [False, True])
def test_the_pure_engine_keeps_its_past(donated: bool) -> None:
    """States with the optimizer in them, also of a run that writes over its states; and the batches are told apart."""
    traced = show.trace([Accumulate(every=2), ClipNorm(max_norm=1.0)], budget=BUDGET)
    init, step, flush = pure.train_step(loss_fn, pure.adamw(0.1), traced)
    state = init({"weight": torch.ones(2)}).replace(donated=donated)
    seen = []
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        seen.append(state.replace(params={"main": {"weight": state.params["main"]["weight"].clone()}}))
        state = step(state, torch.tensor([value]))
    flush(flush(state))
    for batch, before in enumerate(seen):
        kept = traced.trace[batch].state
        assert_same(kept.params, before.params)
        assert kept.batch.item() == batch + 1
        assert int(kept.opt["main"]["step"]) == batch // 2
    assert str(traced.trace).splitlines() == [
        "batch       0  1  2  3  4  flush",
        "----------  -  -  -  -  -  -----",
        "accumulate  w  x  w  x  w  x",
        "clip        s  x  s  x  s  x",
    ]
    assert isinstance(traced.trace[0].snapshot, Snapshot)
