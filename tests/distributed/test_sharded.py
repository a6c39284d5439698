"""Checkpoints that two ranks write and one, two or four resume from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed import jobs
from tests.distributed.pool import Pool
from tests.distributed.runs import apart


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def saved(request: pytest.FixtureRequest, two: Pool, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Any]:
    """Return what kind was saved, where, and how the uninterrupted run went on."""
    path = str(tmp_path_factory.mktemp("saved"))
    return request.param, path, two.run(jobs.saving, request.param, path)[0]


def test_two_ranks_go_on_bitwise(two: Pool, saved: tuple[str, str, Any]) -> None:
    """The same number of ranks goes on as if nothing had been."""
    kind, path, expected = saved
    for found in two.run(jobs.resuming, kind, path, 2):
        assert apart(expected, found) == 0.0


def test_four_ranks_go_on(four: Pool, saved: tuple[str, str, Any]) -> None:
    """Twice as many ranks, each with half of the rows and of the shards."""
    kind, path, expected = saved
    for found in four.run(jobs.resuming, kind, path, 4):
        assert apart(expected, found) < 1e-10


def test_one_process_goes_on(saved: tuple[str, str, Any]) -> None:
    """A plain module in a process that has joined no group."""
    _, path, expected = saved
    assert apart(expected, jobs.resuming(0, "one", path, 1)) < 1e-10


def test_an_open_window_is_not_saved(two: Pool, tmp_path: Path) -> None:
    """What a rank has kept to itself would be lost."""
    for said in two.run(jobs.saving_too_early, str(tmp_path)):
        assert said.startswith("a window is open: on several ranks its gradients are in parts")
