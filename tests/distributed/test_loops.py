"""The loop on several ranks: epochs that end together, and validations that decide the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import loops
from tests.distributed.pool import Pool


@pytest.mark.parametrize("has_length", [True, False])
def test_an_epoch_ends_for_all_where_one_rank_has_no_batch_left(two: Pool, has_length: bool) -> None:
    """Of 5 and 7 batches both see 5, the last of which closes its window; lengths that are known are warned about."""
    seen = [0.0, 1.0, 2.0, 3.0, 4.0] * 2
    first, second = two.run(loops.uneven, (5, 7), has_length)
    assert first[:2] == second[:2] == ((seen, 10, 6, 2), "")
    assert not second[2]
    if has_length:
        told = "rank 0 has 5 batches in this epoch and rank 1 has 7: the epoch ends for all"
        assert all(said.startswith(told) for said in first[2])
    assert len(first[2]) == (2 if has_length else 0)


@pytest.mark.parametrize("has_length", [True, False])
def test_as_many_batches_are_all_seen(two: Pool, has_length: bool) -> None:
    """Nothing is left out and nothing is said."""
    for found in two.run(loops.uneven, (4, 4), has_length):
        assert found == (([0.0, 1.0, 2.0, 3.0] * 2, 8, 4, 2), "", [])


@pytest.mark.parametrize("has_length", [True, False])
def test_a_rank_without_any_batch_is_refused(two: Pool, has_length: bool) -> None:
    """Both ranks say so; neither waits for the other."""
    for (seen, *_), said, _ in two.run(loops.uneven, (3, 0), has_length):
        assert not seen
        assert said.startswith("rank 1 has no batch in this epoch, and rank 0 has some: they train together or not")


def test_an_interruption_waits_for_the_end_of_the_window(two: Pool, tmp_path: Path) -> None:
    """What the first rank saves has no gradients of its own micro-batches in it; both end after the same one."""
    assert two.run(loops.interrupted, str(tmp_path)) == [("interrupted", 4)] * 2
    found = sorted(each.name for each in tmp_path.iterdir())
    assert found == ["history.jsonl", "step00000002-batch00000004-epoch0000"]


def test_a_window_that_crosses_epochs_is_not_saved(two: Pool, tmp_path: Path) -> None:
    """It is said before anything is trained, on both ranks."""
    for said in two.run(loops.carrying, str(tmp_path)):
        assert said.startswith('Accumulate(partial="carry") leaves a window open at the end of an epoch, and fit(check')
    assert not list(tmp_path.iterdir())


def test_ranks_decide_by_the_mean(two: Pool) -> None:
    """Means 3, 2, 4, 4: the rate falls twice, and the second is the best, whatever a rank has found alone."""
    found = [(1.0, 5.0), (3.0, 1.0), (0.5, 7.5), (8.0, 0.0)]
    expected = ([1.0, 1.0, 0.5, 0.25], 2.0, 2, [3.0, 2.0, 4.0, 4.0])
    assert two.run(loops.deciding, found) == [expected] * 2


def test_a_mean_that_is_no_number_is_none_on_all(two: Pool) -> None:
    """NaN on one rank wins nowhere."""
    nan = float("nan")
    for _, score, step, _ in two.run(loops.deciding, [(2.0, 2.0), (nan, 0.0), (float("inf"), -float("inf"))]):
        assert (score, step) == (2.0, 1)


def test_ranks_that_validate_something_else_are_refused(two: Pool) -> None:
    """Both ranks say which numbers there are."""
    for said in two.run(loops.validating_alone):
        assert said.startswith("rank 1 gives the numbers ['error'] of a validation, and rank 0 gives ['accuracy'];")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_best_average_is_handed_out_whole(two: Pool, kind: str) -> None:
    """As a state dict, into a plain network, and into the model itself, sharded or not."""
    assert two.run(loops.keeping, kind) == [[True, True, True]] * 2
