"""The loop on several ranks."""

from __future__ import annotations

from tests.distributed import jobs
from tests.distributed.pool import Pool


def test_each_rank_is_dealt_its_part_of_every_epoch(two: Pool) -> None:
    """Together the ranks see all, in another order in each epoch; only the first shows a bar."""
    (first, bar), (second, nothing) = two.run(jobs.fitting)
    for epoch in range(2):
        assert sorted(first[epoch] + second[epoch]) == list(range(8))
    assert first[0] != first[1]
    assert "8/8" in bar
    assert not nothing
