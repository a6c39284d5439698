"""What the benchmark of replicas does the same in both hands; nothing here is timed."""

from __future__ import annotations

import torch

from tests.benchmarks import ddp
from tests.distributed import jobs
from tests.distributed.pool import Pool


def test_the_loop_and_the_shell_do_the_same(two: Pool) -> None:
    """As many all-reduces, and after three windows bitwise the same weights, which have moved."""
    fresh = next(iter(ddp.layers(8).parameters()))
    for counts, first, second in two.run(jobs.benchmarking):
        assert counts == [1, 1]
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        assert not torch.equal(first[0], fresh)


def test_ratios_are_to_the_loop() -> None:
    """Medians 2 and 3, tenth percentiles 1 and 2."""
    first, second = ddp.rows({"loop": [1.0, 2.0, 9.0], "shell": [2.0, 3.0, 4.0]}, {"loop": 1, "shell": 2})
    assert (first["ms"], first["ratio"], first["ratio_p10"], first["reduces"]) == (2.0, 1.0, 1.0, 1)
    assert (second["ms"], second["ratio"], second["ratio_p10"], second["reduces"]) == (3.0, 1.5, 2.0, 2)
