"""A rank that dies or hangs ends the others within the timeout, with a sentence."""

from __future__ import annotations

import pytest

from tests.distributed import jobs
from tests.distributed.pool import JobError, Pool


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hangs", "dies between verdicts"])
def test_the_others_say_so(how: str) -> None:
    """The error of the network carries what it means."""
    pool = Pool(2, timeout=2)
    with pytest.raises(JobError, match=r"functrain: rank 0 of 2 lost touch with the others: one of them has died"):
        pool.run(jobs.losing, how)
    pool.close()
