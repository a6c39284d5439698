"""Small cases on two ranks, with values that were computed by hand."""

from __future__ import annotations

import pytest

from tests.distributed import jobs
from tests.distributed.pool import Pool


def test_a03_a_weighted_mean_over_ranks(two: Pool) -> None:
    """Sums 6 and 2 over counts 2 and 6 are 1.0, not the mean of means and not half of it."""
    assert two.run(jobs.weighted) == pytest.approx([1.0, 1.0], abs=1e-15)


def test_a14_one_reduction_per_window(two: Pool) -> None:
    """Nothing is reduced in the first micro-batch, once in the second."""
    assert two.run(jobs.deferred) == [([0, 1], 3.5)] * 2


def test_b15_shards_have_one_norm(two: Pool) -> None:
    """Shards of norms 3 and 4 have the norm 5 on both ranks, and are clipped by it."""
    for norm, steps in two.run(jobs.sharded_norm):
        assert norm == 5.0
        assert steps == pytest.approx([0.6, 0.8], abs=1e-6)


def test_d05_a_spike_of_one_rank_skips_on_both(two: Pool) -> None:
    """Losses 1000 and 1 at a limit of 10: neither steps, and both know why."""
    assert two.run(jobs.spiking) == [(0.0, 1, True)] * 2


def test_a_limit_of_skips_is_one_for_both_ranks(two: Pool) -> None:
    """A rank whose own losses are fine raises with the other one, or it would wait for it."""
    for said, batch in two.run(jobs.skipping_too_often):
        assert said.startswith("'spikes' skipped again: 2 optimizer steps in a row")
        assert batch == 2


def test_d06_a_micro_batch_dropped_on_one_rank_is_dropped_on_both(two: Pool) -> None:
    """Gradients (NaN, 3) and (1, 5): the first pair is dropped, the update is 4.0."""
    assert two.run(jobs.dropping) == [4.0, 4.0]


def test_a_micro_batch_left_on_one_rank_is_dropped_on_both(two: Pool) -> None:
    """Leaving without an update counts as a veto where ranks exchange them."""
    assert two.run(jobs.leaving) == [4.0, 4.0]


def test_a_window_that_was_dropped_leaves_no_reducer_waiting(two: Pool) -> None:
    """A forward without a backward says which parameters are unused; the next window uses others."""
    assert two.run(jobs.branching) == [[1.75, 0.75]] * 2


@pytest.mark.parametrize("fails_at", [1, 2])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a12_an_exception_leaves_nothing_of_its_window(two: Pool, kind: str, fails_at: int) -> None:
    """After a backward that did or did not reduce, the window is dropped: 10 and 4 make 7."""
    assert two.run(jobs.failing, kind, fails_at) == [7.0, 7.0]


@pytest.mark.parametrize("kind", ["ddp", "ddp compiled", "fsdp", "fsdp compiled"])
def test_e11_names_are_plain_and_the_shadow_follows(two: Pool, kind: str) -> None:
    """No `module.` and no `_orig_mod.`; the shadow is the average of the weights."""
    for names, _, right in two.run(jobs.averaging, kind):
        assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert right


def test_e15_shadows_are_sharded(two: Pool) -> None:
    """The shadow of a sharded module is a DTensor that equals the average of the whole tensors."""
    assert [(sharded, right) for _, sharded, right in two.run(jobs.averaging, "fsdp")] == [(True, True)] * 2


@pytest.mark.parametrize("kind", ["ddp", "ddp compiled", "fsdp", "fsdp compiled"])
def test_averages_are_used_in_place_and_as_a_module(two: Pool, kind: str) -> None:
    """`averaged()`, `averaged_module()` and `restore()` reach what the forward computes with, also gathered weights."""
    for found in two.run(jobs.swapping, kind):
        assert all(found.values()), found


def test_f04_a_schedule_counts_steps_not_ranks(two: Pool) -> None:
    """After 2 of 10 steps of warm-up the factor is .2 whatever the number of ranks."""
    assert two.run(jobs.warming_up) == pytest.approx([0.2, 0.2])


def test_f04_on_four_ranks(four: Pool) -> None:
    """The same on four."""
    assert four.run(jobs.warming_up) == pytest.approx([0.2] * 4)
