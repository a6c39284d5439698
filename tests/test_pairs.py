"""Pairs of tensors: however they are moved, the numbers are those of torch, and what is staged stays small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from functrain import _packing, _pairs
from functrain._packing import is_packed, packed
from functrain._pairs import Packed, Pairs, Staged

SHAPES = st.lists(st.sampled_from([(), (0,), (1,), (3,), (2, 3), (40, 20), (513,)]), min_size=1, max_size=24)
WEIGHTS = st.floats(0.0, 1.0)


def _tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@given(shapes=SHAPES, weight=WEIGHTS, low=st.booleans(), packs=st.booleans())
def test_pairs_move_as_torch_moves_each(shapes: Any, weight: float, low: bool, packs: bool) -> None:
    """Grouped, packed or staged, targets become bitwise what one ``lerp`` each makes of them."""
    sources = _tensors(shapes, torch.bfloat16 if low else torch.float32, 1)
    targets = {str(place): leaf for place, leaf in enumerate(_tensors(shapes, torch.float32, 2))}
    expected = [leaf.lerp(end.float(), weight) for leaf, end in zip(targets.values(), sources, strict=True)]
    moved = list((packed(targets) if packs else targets).values())
    Pairs(moved, sources).lerp_(weight)
    assert all(map(torch.equal, moved, expected))


@given(shapes=SHAPES, low=st.booleans(), packs=st.booleans())
def test_pairs_copy(shapes: Any, low: bool, packs: bool) -> None:
    """A copy gives every target the values of its source."""
    sources = _tensors(shapes, torch.bfloat16 if low else torch.float32, 1)
    targets = {str(place): leaf for place, leaf in enumerate(_tensors(shapes, torch.float32, 2))}
    moved = list((packed(targets) if packs else targets).values())
    Pairs(moved, sources).copy_()
    assert all(torch.equal(leaf, end.float()) for leaf, end in zip(moved, sources, strict=True))


@given(shapes=SHAPES)
def test_packing_keeps_names_values_and_shapes(shapes: Any) -> None:
    """Packed tensors are the same tensors elsewhere, in the same order, and need no packing again."""
    before = {str(place): leaf for place, leaf in enumerate(_tensors(shapes, torch.float32, 1))}
    after = packed(before)
    assert list(after) == list(before)
    assert all(torch.equal(after[name], leaf) and after[name].shape == leaf.shape for name, leaf in before.items())
    assert is_packed(after)


def test_neighbours_of_another_storage_are_not_packed() -> None:
    """Tensors that happen to lie side by side in memory, on two storages, are never seen as one."""
    flat = torch.arange(4.0)
    other = torch.frombuffer(memoryview(flat.numpy())[2:], dtype=torch.float32)
    assert [len(run) for run in _packing.runs([(flat[:2], flat), (other, flat)])] == [1, 1]


def test_small_targets_move_as_one() -> None:
    """Two thousand small tensors are one mover, and stay at their addresses."""
    targets = packed({str(place): torch.zeros(4) for place in range(2000)})
    places = [leaf.data_ptr() for leaf in targets.values()]
    pairs = Pairs(list(targets.values()), [torch.ones(4) for _ in targets])
    assert [type(mover) for mover in pairs._movers] == [Packed]
    pairs.lerp_(0.5)
    assert [leaf.data_ptr() for leaf in targets.values()] == places
    assert all(torch.equal(leaf, torch.full((4,), 0.5)) for leaf in targets.values())


@pytest.mark.parametrize("turned", [False, True])
def test_a_large_source_of_another_dtype_is_cut(monkeypatch: pytest.MonkeyPatch, turned: bool) -> None:
    """A pair larger than the buffer goes through it in pieces; one that does not lie in a row goes whole."""
    monkeypatch.setattr(_pairs, "STAGED", 10)
    source = torch.randn(7, 9, dtype=torch.bfloat16)
    source = source.t().contiguous().t() if turned else source
    target = torch.zeros(7, 9)
    pairs = Pairs([target], [source])
    assert [type(mover) for mover in pairs._movers] == [Staged]
    pairs.lerp_(0.25)
    assert torch.equal(target, torch.zeros(7, 9).lerp(source.float(), 0.25))


def test_staging_allocates_nothing_per_update() -> None:
    """An update of an fp32 shadow over bf16 weights makes no new tensor of the size of a weight."""
    targets, sources = [torch.zeros(1 << 20) for _ in range(4)], [torch.ones(1 << 20).bfloat16() for _ in range(4)]
    pairs = Pairs(targets, sources)
    pairs.lerp_(0.5)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        pairs.lerp_(0.5)
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    assert max((event.nbytes() for event in events if event.name() == "[memory]"), default=0) < 1 << 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_is_a_tensor(dtype: torch.dtype) -> None:
    """A 0-d double moves bitwise as the number does, staged or not."""
    sources = _tensors([(3,), (2, 3)], dtype, 1)
    found = [_tensors([(3,), (2, 3)], torch.float32, 2) for _ in range(2)]
    for targets, weight in zip(found, (0.3, torch.tensor(0.3, dtype=torch.float64)), strict=True):
        Pairs(targets, sources).lerp_(weight)
    assert all(map(torch.equal, *found))
