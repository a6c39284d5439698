"""How often ranks exchange something in a window of three micro-batches: counted by the profiler."""

from __future__ import annotations

import pytest

from tests.distributed import jobs
from tests.distributed.pool import Pool

REDUCE, GATHER = "c10d::allreduce_", "c10d::allgather_"


def test_no_more_than_the_recipe(two: Pool) -> None:
    """A window without rank-local hooks exchanges what a loop by hand with no_sync does: one all-reduce."""
    expected = two.run(jobs.by_hand)
    assert expected[0] == {REDUCE: 1}
    assert two.run(jobs.counted, "accumulate", "ddp") == expected


def test_metrics_are_reduced_when_they_are_read(two: Pool) -> None:
    """Losses 1 and 3 are 2 on both ranks, by one exchange for all metrics."""
    assert two.run(jobs.reading) == [({"loss": 2.0, "grad_limit": 1.0, "grad_norm": 5.0}, 1)] * 2


@pytest.mark.parametrize(
    ("name", "reduce", "gather"),
    [
        ("accumulate", 1, 0),  # gradients
        ("drop last", 1 + 3, 0),  # and one verdict per micro-batch, none at the step
        ("weighted", 1 + 1, 0),  # gradients, and the sum of weights
        ("everything", 1 + 3, 1),  # the window's losses once; the overflow is the same on all ranks
    ],
)
def test_what_a_pipeline_costs(two: Pool, name: str, reduce: int, gather: int) -> None:
    """Verdicts that are the same by construction cost nothing; others one collective per stage."""
    for found in two.run(jobs.counted, name, "ddp"):
        assert (found[REDUCE], found[GATHER], sum(found.values())) == (reduce, gather, reduce + gather)
