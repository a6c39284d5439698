"""Ranks that are built differently are refused instead of waiting for one another."""

from __future__ import annotations

import pytest

from tests.distributed import jobs
from tests.distributed.pool import Pool


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("setting", "rank 1 differs from rank 0 in ['settings']['clip']['max_norm']: 2.0 and not 1.0"),
        ("pipeline", "rank 1 differs from rank 0 in ['hooks']: ['clip'] and not ['clip', 'ema']"),
    ],
)
def test_ranks_that_differ_are_refused(two: Pool, what: str, said: str) -> None:
    """Every rank raises the same sentence, at SETUP."""
    for found in two.run(jobs.built_differently, what):
        assert found.startswith(said)
        assert found.endswith("build the same models, optimizers and hooks on every rank")
