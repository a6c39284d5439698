"""Lanes that die: when, how they are marked, and that nobody else notices."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from functrain import Accumulate, FixedLimit, MixedPrecision, SkipLimitError, SkipNonFinite, SkipSpikes, pure
from tests.pure.sweeping import alone, different, swept, tiny

NAN = float("nan")


def fed(*values: float) -> list[Tensor]:
    """Return a batch for each value."""
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def test_a_lane_that_diverges_is_dead_and_the_others_are_not() -> None:
    """Steps of 1e200 times the slope overflow in the second one; that lane is marked and keeps its counts."""
    table = swept(tiny(), {"lr": [0.1, 1e200, 0.2]}, fed(1.0, 1.0, 1.0, 1.0))
    assert table.column("dead") == [False, True, False]
    assert table.column("batches") == [4, 2, 4]
    assert table.column("steps") == [4, 2, 4]


@given(st.lists(st.sampled_from([0.1, 0.3, 1e200]), min_size=2, max_size=6))
def test_the_dead_disturb_nobody(rates: list[float]) -> None:
    """Whoever dies beside it, a living lane ends bitwise where it ends in a sweep of its own."""
    batches = fed(1.0, -1.0, 2.0)
    table = swept(tiny(), {"lr": rates}, batches)
    for lane, rate in enumerate(rates):
        single = swept(tiny(), {"lr": [rate]}, batches)
        assert different(table.state(lane), single.state(0), 0.0) == []
        assert table.rows[lane] | {"lane": 0} == pytest.approx(single.rows[0], rel=0, nan_ok=True)


def test_a_dead_lane_stands_still() -> None:
    """Its state is that in which it died, and its losses end there; flushing does not bring it further."""
    run = tiny()
    table = swept(run, {"lr": [1e200, 0.1]}, fed(1.0, 1.0, 1.0, 1.0), flush=run.flush)
    expected = alone(run, swept(run, {"lr": [1e200]}, fed(1.0)).state(0), fed(1.0))
    assert different(table.state(0), expected, 0.0) == []
    assert [isnan(loss) for loss in table.losses[0].tolist()] == [False, False, True, True]
    assert table.states.clock.epoch.tolist() == [0, 1]


def test_a_nan_loss_without_a_hook_is_death() -> None:
    """Nobody vetoes: the NaN has reached the weights."""
    table = swept(tiny(), {"lr": [0.1]}, fed(1.0, NAN, 1.0))
    assert (table.column("dead"), table.column("batches")) == ([True], [2])


def test_a_nan_loss_whose_weights_stay_finite_is_death_too() -> None:
    """A loss that is NaN beside finite gradients trained on nonsense."""
    run = pure.train_step(lambda params, _, x: params["w"] + x, pure.sgd(0.1), [])
    table = swept(run, {"lr": [0.1]}, fed(1.0, NAN, 1.0))
    assert table.states.params["main"]["w"].isfinite().all()
    assert (table.column("dead"), table.column("batches")) == ([True], [2])


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("drop", [True, False])
def test_a_nan_that_a_hook_caught_is_no_death(every: int, drop: bool) -> None:
    """Dropped or vetoed, wherever it lies in the window: the lane lives, and its losses leave the dropped one out."""
    run = tiny([Accumulate(every=every), SkipNonFinite(drop=drop)])
    table = swept(run, {"lr": [0.1, 0.2]}, fed(1.0, NAN, 1.0, 1.0, 1.0, 1.0))
    assert table.column("dead") == [False, False]
    assert [isnan(loss) for loss in table.column("loss")] == [False, False]
    assert [isnan(loss) for loss in table.column("mean_loss")] == [not drop] * 2


def test_past_a_limit_is_death_at_the_boundary_at_which_check_raises() -> None:
    """Three NaN in a row with two allowed: dead at the third, although the batches get better."""
    run, batches = tiny([SkipNonFinite(max_consecutive=2)]), fed(1.0, NAN, NAN, NAN, 1.0, 1.0)
    table = swept(run, {"lr": [0.1]}, batches)
    assert (table.column("dead"), table.column("batches"), table.column("skips")) == ([True], [4], [3])
    state = run.init({"w": torch.zeros((), dtype=torch.float64)})
    for place, batch in enumerate(batches[:4]):
        pure.check(state)
        state = run.step(state, batch)
        assert place < 3 or different(state, table.state(0), 0.0) == []
    with pytest.raises(SkipLimitError, match="since batch 1, and max_consecutive=2"):
        pure.check(state)


def test_only_the_lane_past_its_limit_dies() -> None:
    """A limit on the loss that only one lane exceeds, twice in a row."""
    run = tiny([SkipSpikes(by=FixedLimit(limit=1.0), max_consecutive=1)])
    table = swept(run, {"hooks.spikes.statistic.limit": [0.5, 9.0]}, fed(1.0, 1.0, 1.0))
    assert table.column("dead") == [True, False]
    assert table.column("batches") == [2, 3]
    with pytest.raises(SkipLimitError, match=r"^lane 0: 'spikes' skipped again: 2 optimizer steps"):
        pure.check(table.states)


def test_death_in_the_last_flush_counts() -> None:
    """A partial window that holds a NaN steps only when it is flushed."""
    run = tiny([Accumulate(every=2)])
    options: dict[str, Any] = {"over": {"lr": [0.1]}, "fed": fed(1.0, 1.0, NAN)}
    assert swept(run, **options).column("dead") == [False]
    assert swept(run, **options, flush=run.flush).column("dead") == [True]


def test_an_overflow_of_the_scaler_is_no_death() -> None:
    """The first scale is too large for one lane's slope; the step is skipped, the scale backs off, the lane lives."""
    run = pure.train_step(
        lambda params, _, x: (params["w"] * x).sum(), pure.sgd(1e-3), [MixedPrecision(precision="fp16")]
    )
    start = {"w": torch.zeros(1)}
    table = swept(run, {"lr": [1e-3]}, [torch.full((1,), 1e35)] * 3, params=start)
    assert table.column("dead") == [False]
    assert table.column("skips") == [3]


def test_lanes_that_all_die_leave_no_best() -> None:
    """There is nothing to choose from, and the error says how many died."""
    table = swept(tiny(), {"lr": [1e200, 1e250]}, fed(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=r"no lane lives .* 2 of 2 are dead"):
        table.best()
