"""What may be swept, and what is said about what may not."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import functrain
from functrain import EMA, Accumulate, ClipNorm, FixedLimit, SkipSpikes, pure
from tests.pure.sweeping import clipped, swept, tiny

ONE = [torch.ones(())]
SERIES = st.dictionaries(
    st.sampled_from(["lr", "seed", "x"]), st.lists(st.integers(), min_size=1, max_size=4), min_size=1
)


@given(SERIES)
def test_a_grid_holds_every_combination_once(over: dict[str, list[int]]) -> None:
    """As many lanes as the product of the lengths; along each key its values, in their order."""
    lanes, sizes = pure.grid(over), {key: len(values) for key, values in over.items()}
    assert len(lanes) == torch.Size(sizes.values()).numel()
    indices = pure.grid({key: range(size) for key, size in sizes.items()})
    assert lanes == [{key: over[key][place[key]] for key in over} for place in indices]
    assert [tuple(place.values()) for place in indices] == sorted({tuple(place.values()) for place in indices})


@given(SERIES)
def test_zipped_takes_values_side_by_side(over: dict[str, list[int]]) -> None:
    """Series of one length give a lane per position; others are refused with their lengths."""
    lengths = {key: len(values) for key, values in over.items()}
    if len(set(lengths.values())) > 1:
        with pytest.raises(ValueError, match="as many values of each key"):
            pure.zipped(over)
        return
    assert [[lane[key] for lane in pure.zipped(over)] for key in over] == list(over.values())


@pytest.mark.parametrize("spread", [pure.grid, pure.zipped])
@pytest.mark.parametrize(
    ("over", "kind", "said"),
    [
        ({}, ValueError, "names nothing to sweep"),
        ({"lr": []}, ValueError, r"over\['lr'\] lists no values"),
        ({"lr": 0.1}, TypeError, r"over\['lr'\] must list values, got 0.1; write \[0.1\]"),
        ({"lr": "0.1"}, TypeError, "must list values, got '0.1'"),
    ],
)
def test_what_lists_no_values_is_refused(spread: Any, over: Any, kind: type[Exception], said: str) -> None:
    """A number instead of a list, a string, an empty list, nothing at all."""
    with pytest.raises(kind, match=said):
        spread(over)


def test_values_of_tensors_come_out_as_numbers() -> None:
    """A logspace is a tensor; records hold plain numbers."""
    rates = torch.logspace(-2, 0, 3, dtype=torch.float64)
    table = swept(tiny(), {"lr": rates}, ONE)
    assert table.column("lr") == rates.tolist()
    assert all(type(rate) is float for rate in table.column("lr"))


@pytest.mark.parametrize(
    ("lanes", "kind", "said"),
    [
        ([], ValueError, "over lists no lanes"),
        ([0.1], TypeError, "got float"),
        ([{"lr": 0.1}, {"momentum": 0.9}], ValueError, r"lane 1 sets \['momentum'\] and lane 0 sets \['lr'\]"),
    ],
)
def test_lanes_by_hand_must_be_alike(lanes: Any, kind: type[Exception], said: str) -> None:
    """A list of dicts is what zipped returns; its dicts have the same keys."""
    with pytest.raises(kind, match=said):
        swept(tiny(), lanes, ONE)


@pytest.mark.parametrize("key", ["lrr", "hooks.clip", "hooks.clip.max", "opt.other.lr", "clip.max_norm", "hooks", 3])
def test_an_unknown_key_lists_what_there_is(key: Any) -> None:
    """The message holds the seed, the optimizer's numbers and the hooks' numbers."""
    with pytest.raises(KeyError) as raised:
        swept(clipped(), {key: [0.1]}, ONE)
    said = str(raised.value)
    assert f"nothing to sweep under {key!r}" in said
    assert all(f"'{known}'" in said for known in ("seed", "lr", "opt.main.lr", "weight_decay", "hooks.clip.max_norm"))


def test_a_near_miss_is_recognised() -> None:
    """The message proposes the key that was probably meant."""
    with pytest.raises(KeyError, match=r"did you mean 'hooks\.clip\.max_norm'\?"):
        swept(clipped(), {"hooks.clip.maxnorm": [0.1]}, ONE)


def test_a_rate_by_schedule_is_no_number() -> None:
    """With a schedule there is no learning rate to set; the other numbers are there."""
    run = pure.train_step(lambda params, _, x: params["w"] * x, pure.sgd(pure.warmup_cosine(1.0, 1, 2)), [])
    with pytest.raises(KeyError, match=r"nothing to sweep under 'lr'.*'weight_decay'"):
        swept(run, {"lr": [0.1]}, ONE)


def test_names_of_weights_are_no_keys() -> None:
    """Counters of a shadow, under dotted names, are not offered."""
    run = pure.train_step(lambda params, _, x: params["w.x"] * x, pure.sgd(0.1), [EMA()])
    start = {"w.x": torch.zeros((), dtype=torch.float64)}
    with pytest.raises(KeyError) as raised:
        swept(run, {"none": [0.1]}, ONE, params=start)
    assert "hooks.ema.decay" in str(raised.value)
    assert "w.x" not in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "kind", "said"),
    [
        ("lr", "fast", TypeError, "must hold a number in each lane, got 'fast'"),
        ("lr", True, TypeError, "must hold a number in each lane, got True"),
        ("lr", None, TypeError, "got None"),
        ("lr", float("nan"), ValueError, "holds NaN"),
        ("seed", 0.5, TypeError, "must hold a whole number in each lane, got 0.5"),
        ("hooks.accumulate.every", 1.5, TypeError, "must hold a whole number"),
        ("hooks.accumulate.every", 0, ValidationError, "greater than or equal to 1"),
        ("hooks.clip.max_norm", -1.0, ValidationError, "greater than or equal to 0"),
        ("hooks.ema.decay", 1.0, ValidationError, "less than 1"),
    ],
)
def test_a_value_is_checked_as_its_hook_would(key: str, value: Any, kind: type[Exception], said: str) -> None:
    """Wrong kinds, NaN and values out of a hook's bounds are refused before anything runs."""
    run = tiny([Accumulate(every=1), functrain.every(1, ClipNorm(max_norm=1.0)), EMA()])
    with pytest.raises(kind, match=said):
        pure.sweep(
            partial(run.init, {"w": torch.zeros(())}), run.step, over={key: [value]}, batches=ONE, progress=False
        )


def test_whole_numbers_and_flags_keep_their_kind() -> None:
    """2.0 will do for a count, 1 for a rate, True for a flag; the state's dtypes stay."""
    over = pure.zipped({"hooks.accumulate.every": [2.0], "lr": [1], "hooks.finite.bad": [True]})
    run = tiny([Accumulate(every=1), functrain.SkipNonFinite()])
    table = swept(run, over, ONE)
    slots, rate = table.states.hooks, table.states.opt["main"]["lr"]
    kinds = [leaf.dtype for leaf in (slots["accumulate"]["every"], slots["finite"]["bad"], rate)]
    assert kinds == [torch.int64, torch.bool, torch.float64]
    assert (slots["accumulate"]["every"].tolist(), rate.tolist()) == ([2], [1.0])


def test_an_infinite_limit_may_be_swept() -> None:
    """Infinity only measures."""
    table = swept(clipped(), {"hooks.clip.max_norm": [float("inf"), 1.0]}, [torch.tensor(10.0)])
    assert [float(table.state(lane).params["main"]["w"]) for lane in (0, 1)] == pytest.approx([2.0, 0.1], rel=1e-5)


def test_an_init_that_lacks_parameters_is_told_how() -> None:
    """The init of train_step needs params, given to the sweep or bound before."""
    run = tiny()
    for over in ({"lr": [0.1]}, {"seed": [0]}):
        with pytest.raises(TypeError, match=r"give sweep\(params=...\) what it starts from"):
            pure.sweep(run.init, run.step, over=over, batches=ONE)


def test_an_init_that_takes_no_seed_cannot_be_swept_over_seeds() -> None:
    """A closure without a seed would give every lane the same weights."""
    run = tiny()
    state = run.init({"w": torch.zeros(())})
    with pytest.raises(TypeError, match=r"cannot be called as init\(seed=...\)"):
        pure.sweep(lambda: state, run.step, over={"seed": [0, 1]}, batches=ONE)


@pytest.mark.parametrize("max_lanes", [0, -1])
def test_max_lanes_is_at_least_one(max_lanes: int) -> None:
    """No lanes at once is no sweep."""
    with pytest.raises(ValueError, match=f"max_lanes must be at least 1, got {max_lanes}"):
        swept(tiny(), {"lr": [0.1]}, ONE, max_lanes=max_lanes)


def test_batches_must_be_there() -> None:
    """An empty list, and an iterator that would be needed twice."""
    with pytest.raises(ValueError, match="batches held no batch"):
        swept(tiny(), {"lr": [0.1]}, [])
    with pytest.raises(ValueError, match="can be read once only, and epochs=2"):
        swept(tiny(), {"lr": [0.1]}, iter(ONE), epochs=2)


def test_nested_numbers_of_a_hook_are_reached() -> None:
    """The rule inside a hook has numbers of its own."""
    run = tiny([SkipSpikes(by=FixedLimit(limit=0.0))])
    table = swept(run, {"hooks.spikes.statistic.limit": [0.5, 2.0]}, ONE)
    assert table.column("steps") == [0, 1]
