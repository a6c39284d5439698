"""Noise: uniform, normal, independent in every coordinate, and the same in a lane as alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from functrain import pure
from functrain.pure.noise import Missing

MANY = 1 << 16
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SEEDS = st.integers(-(2**63), 2**63 - 1)
BATCHES = st.integers(0, 2**40)
DRAWS: dict[str, Callable[[pure.Noise], Tensor]] = {
    "bits": lambda noise: noise.bits((3, 4)),
    "uniform": lambda noise: noise.uniform((3, 4), torch.float64),
    "normal": lambda noise: noise.normal((3, 4)),
    "keep": lambda noise: noise.keep((3, 4), 0.5),
}


def correlation(a: Tensor, b: Tensor) -> float:
    """Return the correlation of two draws in units of its standard deviation for independent ones."""
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1]) * MANY**0.5


@given(seed=SEEDS, batch=BATCHES)
def test_every_bit_is_set_half_of_the_time(seed: int, batch: int) -> None:
    """Each of the 32 bits, over 65,536 numbers, is within 6 standard deviations of a half."""
    bits = pure.Noise(seed, batch).bits((MANY,))
    assert int(bits.min()) >= 0
    assert int(bits.max()) < 2**32
    shares = torch.stack([(bits >> place & 1).double().mean() for place in range(32)])
    assert float((shares - 0.5).abs().max()) < 6 * 0.5 / MANY**0.5


@given(seed=SEEDS, batch=BATCHES)
def test_uniform_numbers_fill_the_interval_evenly(seed: int, batch: int) -> None:
    """Chi-square over 256 bins is within 6 standard deviations of what is expected."""
    counts = torch.histc(pure.Noise(seed, batch).uniform((MANY,)), 256, 0.0, 1.0)
    chi = float(((counts - MANY / 256) ** 2 / (MANY / 256)).sum())
    assert abs(chi - 255) < 6 * (2 * 255) ** 0.5


@given(seed=SEEDS)
def test_normal_numbers_have_the_moments_of_a_normal_distribution(seed: int) -> None:
    """Mean 0, variance 1, skewness 0 and kurtosis 3, each within 6 standard deviations."""
    x = pure.Noise(seed, 0).normal((MANY,), torch.float64)
    for power, moment, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(float((x**power).mean()) - moment) < 6 * (variance / MANY) ** 0.5


@given(seed=SEEDS, batch=BATCHES, step=st.sampled_from([1, 2, 256, 2**16, 2**31, 2**32]))
def test_neighbours_in_every_coordinate_are_independent(seed: int, batch: int, step: int) -> None:
    """Another seed, another batch, another call, the next place: each correlation is within 6 deviations of 0."""
    noise = pure.Noise(seed, batch)
    first, second = noise.bits((MANY,)), noise.bits((MANY,))
    other_seed = pure.Noise(seed - step if seed > 0 else seed + step, batch).bits((MANY,))
    for other in (second, other_seed, pure.Noise(seed, batch + 1).bits((MANY,)), first.roll(1)):
        assert abs(correlation(first, other)) < 6


@given(seed=SEEDS, batch=BATCHES, p=st.floats(0.0, 1.0))
def test_keep_is_true_at_the_rate_asked_for(seed: int, batch: int, p: float) -> None:
    """The share of True is within 6 standard deviations of ``p``, a number or a tensor; none at 0, all at 1."""
    kept = pure.Noise(seed, batch).keep((MANY,), p)
    assert abs(float(kept.double().mean()) - p) <= 6 * (p * (1 - p) / MANY) ** 0.5 + 2**-32
    assert torch.equal(kept, pure.Noise(seed, batch).keep((MANY,), torch.tensor(p, dtype=torch.float64)))
    assert pure.Noise(seed, batch).keep((MANY,), 1.0).all()
    assert not pure.Noise(seed, batch).keep((MANY,), 0.0).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_uniform_number_rounds_up_to_one(dtype: torch.dtype) -> None:
    """In every precision all numbers are below 1, and as many values occur as its significand can hold."""
    x = pure.Noise(0, 0).uniform((MANY,), dtype)
    assert x.dtype is dtype
    assert 0.0 <= float(x.min()) < float(x.max()) < 1.0
    assert len(x.unique()) > min(0.99 * MANY, 0.99 / torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_numbers_are_finite_in_every_precision(dtype: torch.dtype) -> None:
    """Small precisions are drawn in single and rounded; nothing overflows."""
    x = pure.Noise(0, 0).normal((MANY,), dtype)
    assert x.dtype is dtype
    assert x.isfinite().all()
    assert float(x.float().abs().max()) > 3.5


@pytest.mark.parametrize("name", DRAWS)
@given(seeds=st.lists(SEEDS, min_size=1, max_size=5), batch=BATCHES)
def test_a_lane_draws_what_it_draws_alone(name: str, seeds: list[int], batch: int) -> None:
    """However many seeds run as lanes, each draws the numbers of its run alone, call by call."""

    def two(seed: Tensor) -> Tensor:
        noise = pure.Noise(seed, torch.tensor(batch))
        return torch.stack([DRAWS[name](noise), DRAWS[name](noise)])

    lanes = torch.func.vmap(two)(torch.tensor(seeds))
    assert all(torch.equal(lanes[place], two(torch.tensor(seed))) for place, seed in enumerate(seeds))


def test_a_rate_may_differ_from_lane_to_lane() -> None:
    """A tensor of rates as lanes gives each lane what its rate gives alone."""
    rates = torch.tensor([0.0, 0.3, 1.0])
    lanes = torch.func.vmap(lambda p: pure.Noise(0, 0).keep((50,), p))(rates)
    assert all(torch.equal(lane, pure.Noise(0, 0).keep((50,), rate)) for lane, rate in zip(lanes, rates, strict=True))


@pytest.mark.parametrize("name", DRAWS)
def test_a_compiled_draw_is_the_eager_one(name: str) -> None:
    """One graph for all seeds and batches, and the same numbers."""
    torch._dynamo.reset()

    def drawn(seed: Tensor, batch: Tensor) -> Tensor:
        return DRAWS[name](pure.Noise(seed, batch))

    compiled = torch.compile(drawn, fullgraph=True, backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for place in (0, 1, 2**40):
            assert torch.equal(
                compiled(torch.tensor(place), torch.tensor(3)), drawn(torch.tensor(place), torch.tensor(3))
            )


def test_drawing_leaves_the_stream_of_torch_alone() -> None:
    """What torch draws next does not depend on what noise was drawn."""
    before = torch.get_rng_state()
    pure.Noise(0, 0).normal((5,))
    assert torch.equal(before, torch.get_rng_state())


def test_numbers_stay_the_same_from_release_to_release() -> None:
    """A run can be repeated later: the first numbers of one seed, as they were when this test was written."""
    assert pure.Noise(1, 2).bits((3,)).tolist() == [4137864846, 3285080202, 2142028994]


def test_no_noise_says_what_to_pass() -> None:
    """Whoever draws without noise is told of the fourth argument."""
    with pytest.raises(ValueError, match=r"fourth argument.*Noise\(seed, batch_number\)"):
        Missing().keep((2,), 0.5)
