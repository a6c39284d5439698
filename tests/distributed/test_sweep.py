"""Sweeps whose lanes are spread over ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain.pure.lanes import part_size
from functrain.pure.team import dealt
from tests.distributed import sweeps
from tests.distributed.pool import Pool


@pytest.mark.parametrize(("max_lanes", "alone"), [(None, 3), (1, 1)])
def test_two_ranks_return_the_table_of_one_process(two: Pool, max_lanes: int | None, alone: int) -> None:
    """6 lanes, some of which die: rows, states and losses are bitwise those of one process, on both ranks."""
    rows, states, losses = sweeps.found_in(sweeps.sweep(max_lanes=alone))
    assert "'dead': True" in rows
    assert "'dead': False" in rows
    for found in two.run(sweeps.sweeping, max_lanes):
        assert found[:2] == (rows, states)
        assert torch.equal(found[2], losses)


@given(st.integers(1, 40), st.none() | st.integers(1, 50), st.integers(1, 7))
def test_lanes_are_dealt_in_the_parts_of_one_process(count: int, max_lanes: int | None, world: int) -> None:
    """All ranks have as many parts; together they are those of one process, and copies of the last lane."""
    lanes = [{"lane": place} for place in range(count)]
    hands, sizes = zip(*(dealt(lanes, max_lanes, rank, world) for rank in range(world)), strict=True)
    (size,), (share,) = set(sizes), {len(hand) for hand in hands}
    together = [lane for hand in hands for lane in hand]
    assert together[:count] == lanes
    assert all(lane == lanes[-1] for lane in together[count:])
    assert share == count if world == 1 else share % size == 0
    assert size <= min(max_lanes or count, -(-count // world))
    assert part_size(count, size) == size


def test_batches_exchange_nothing(two: Pool) -> None:
    """What ranks tell one another they tell before the first batch and after the last."""
    for before, *after in two.run(sweeps.costing):
        assert before > 0
        assert after == [before] * 5


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "over",
            r"ValueError: rank 1 differs from rank 0 in \['over'\]\[1\]\['lr'\]: 1.2 and not 0.2; give every rank",
        ),
        ("lanes", r"ValueError: rank 1 differs from rank 0 in \['lanes'\]: 2 and not 3;"),
        ("epochs", r"ValueError: rank 1 differs from rank 0 in \['epochs'\]: 2 and not 1;"),
        ("setting", r"ValueError: rank 1 differs from rank 0 in \['settings'\]\['ema'\]\['decay'\]: 0.75 and not 0.5;"),
        ("weights", r"ValueError: rank 1 differs from rank 0 in \['start'\]\['state.params.*checksum"),
        ("batches", r"ValueError: batch 0 of rank 1 is not that of rank 0; every lane sees every batch"),
        ("count", r"ValueError: rank 1 had 6 batches, and rank 0 had 5; every lane sees every batch"),
        ("no lanes", r"(RuntimeError: the sweep has failed on rank 1: )?ValueError: over lists no lanes"),
        ("part", r"(RuntimeError: the sweep has failed on rank 1: )?ValueError: max_lanes must be at least 1"),
        ("value", r"(RuntimeError: the sweep has failed on rank 1: )?ValidationError: 1 validation error for ClipNorm"),
        ("loader", r"(RuntimeError: the sweep has failed on rank 1: )?OSError: the disk is gone"),
    ],
)
def test_ranks_that_differ_are_refused(two: Pool, what: str, said: str) -> None:
    """Both ranks raise a sentence; none waits for the other."""
    for found in two.run(sweeps.differing, what):
        assert re.match(said, found), found


def test_the_command_shows_and_writes_on_the_first_rank(two: Pool, tmp_path: Path) -> None:
    """One table, one bar over all batches, and one set of files."""
    first, second = two.run(sweeps.commanding, 2, str(tmp_path))
    assert len(re.findall("best: lane", first)) == 1
    assert "23/23" in first
    assert not second
    assert {each.name for each in tmp_path.iterdir()} == {"sweep.png", "sweep.json"}
