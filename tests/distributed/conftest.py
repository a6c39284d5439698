"""Two ranks and four, for a whole session of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool


@pytest.fixture(scope="session")
def two() -> Iterator[Pool]:
    """Return two ranks."""
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Pool]:
    """Return four ranks."""
    pool = Pool(4)
    yield pool
    pool.close()
