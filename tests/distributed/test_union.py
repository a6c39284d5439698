"""Several processes train as one process does on all their rows."""

from __future__ import annotations

import pytest

from tests.distributed.pool import Pool
from tests.distributed.runs import PLANS, apart, train, train_alone, train_named


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", PLANS)
def test_two_ranks_equal_one_process(two: Pool, name: str, kind: str) -> None:
    """Weights after every micro-batch, averages, scale and counters are those of one process, on both ranks."""
    expected = train(PLANS[name], "one")
    for found in two.run(train_named, 2, name, kind):
        assert apart(expected, found) < 1e-10


@pytest.mark.parametrize(
    "kind",
    [
        "ddp compiled",
        "ddp find unused parameters",
        "ddp static graph",
        "ddp gradient as bucket view",
        "fsdp compiled",
    ],
)
@pytest.mark.parametrize("name", ["everything", "drop last", "discard"])
def test_wrappers_in_wrappers_and_their_options(two: Pool, name: str, kind: str) -> None:
    """The same whatever the way in which a model is compiled or replicated."""
    expected = train(PLANS[name], "one")
    for found in two.run(train_named, 2, name, kind):
        assert apart(expected, found) < 1e-10


def test_shards_of_one_rank(two: Pool) -> None:
    """A mesh of one rank holds everything, and its tensors are sharded ones all the same."""
    expected = train(PLANS["everything"], "one")
    assert max(apart(expected, found) for found in two.run(train_alone, "everything")) < 1e-10


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hsdp"])
def test_four_ranks_equal_one_process(four: Pool, kind: str) -> None:
    """The same with a row for each rank, also where a shard is empty."""
    expected = train(PLANS["everything"], "one")
    for found in four.run(train_named, 4, "everything", kind):
        assert apart(expected, found) < 1e-10
