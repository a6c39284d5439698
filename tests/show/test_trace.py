"""A traced pipeline: the same results, and what its hooks did."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    FixedLimit,
    Shell,
    SkipNonFinite,
    SkipSpikes,
    Stage,
    fold,
    hook,
    pure,
    show,
)
from functrain._strict import same
from functrain._tree import paths
from tests.show.reading import parsed


@hook(stages=Stage.DO_BACKWARD, priority=45)
def halve(state: Any, stage: Stage, will_skip: Any) -> Any:
    """Return half the loss."""
    return state, True, state.loss / 2


PIPELINE = fold(
    Accumulate(every=2),
    ClipNorm(max_norm=1.0),
    SkipNonFinite(),
    SkipSpikes(by=FixedLimit(limit=100.0)),
    halve,
    EMA(decay=0.5),
)
INPUTS = (1.0, 1.0, math.nan, 1.0, 1.0, 1e4, math.nan, math.nan)
"""Two good ones; one dropped; a spike; a window of which nothing enters."""


def trained(pipeline: Any) -> Shell:
    """Return a shell that has seen all inputs."""
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), pipeline)
    for value in INPUTS:
        with shell.batch():
            shell.update(model(torch.full((1, 1), value, dtype=torch.float64)).square().mean())
    return shell


def assert_same(one: Any, other: Any) -> None:
    """Every leaf of the two is bitwise the same."""
    ours, theirs = paths(one), paths(other)
    assert ours.keys() == theirs.keys()
    assert not [path for path in ours if not same(ours[path], theirs[path])]


def test_the_shell_gives_the_same_traced_or_not() -> None:
    """Bitwise, every leaf of the state."""
    assert_same(trained(PIPELINE).state, trained(show.trace(PIPELINE)).state)


def test_the_pure_engine_gives_the_same_traced_or_not() -> None:
    """Bitwise, and the lanes are those of the shell."""

    def loss_fn(params: Any, buffers: Any, batch: Tensor) -> Tensor:
        return (params["weight"] * batch).square().mean()

    found, traced = [], show.trace(PIPELINE)
    for pipeline in (PIPELINE, traced):
        init, step, _ = pure.train_step(loss_fn, pure.sgd(0.1), pipeline)
        state = init({"weight": torch.ones(1, dtype=torch.float64)})
        for value in INPUTS:
            state = step(state, torch.tensor([value], dtype=torch.float64))
        found.append(state)
    assert_same(*found)
    shell = show.trace(PIPELINE)
    trained(shell)
    assert str(traced.trace) == str(shell.trace)


def test_the_lanes_say_what_each_hook_did() -> None:
    """Waiting, dropping, seeing a skip, vetoing, changing the loss: each where it happened; the twins agree."""
    traced = show.trace(PIPELINE)
    trained(traced)
    lanes = {row[0]: "".join(row[1:]) for row in traced.trace.view().shown.rows}
    assert lanes == {
        "accumulate": "wxwxwxws",
        "clip": "sxsxsxss",
        "finite": "sxdxsxdd",
        "spikes": "sxsxsvss",
        "halve": "llllllll",
        "ema": "xxxxxxxx",
    }
    page = parsed(traced.trace._repr_html_())
    assert page.tags.count("tr") == 1 + len(PIPELINE)
    records = traced.trace.records()
    assert len(records) == len(INPUTS) * len(PIPELINE)
    assert {"batch": 5, "hook": "spikes", "outcome": "vetoed"} in records


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (0, "batch 0 waits in its window (loss 1, "),
        (1, "batch 1 was not skipped (loss 1, "),
        (2, "batch 2 was dropped: 'finite' vetoed DO_BACKWARD (loss nan, "),
        (5, "batch 5 made no step: 'spikes' vetoed DO_OPTIMIZER_STEP (loss "),
        (99, "batch 99 is not in the trace"),
    ],
)
def test_one_sentence_says_why(batch: int, told: str) -> None:
    """With the numbers of that micro-batch."""
    traced = show.trace(PIPELINE)
    trained(traced)
    assert traced.trace.why_skipped(batch).startswith(told)


def test_old_calls_are_forgotten() -> None:
    """Beyond the limit the oldest go first."""
    traced = show.trace(PIPELINE, limit=3)
    trained(traced)
    assert len(traced.trace.events) == 3
    assert [*traced.trace.batches()] == [len(INPUTS) - 1]
