"""Windows beside one big batch: the same update up to the rounding of float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW, Optimizer

from functrain import Accumulate, ClipNorm, MixedPrecision, Shell, SkipNonFinite

ROWS, WINDOWS = 12, 3
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda model: Adam(model.parameters(), lr=0.01),
    "adamw": lambda model: AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
}
optimizers = st.sampled_from(sorted(OPTIMIZERS))
seeds = st.integers(0, 2**31)


def model_and_data(seed: int) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Return a small model in float64 and one big batch per window."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2)).double()
    return model, [(torch.randn(ROWS, 3).double(), torch.randn(ROWS, 2).double()) for _ in range(WINDOWS)]


def in_one_batch(seed: int, optimizer: str, hooks: Any = ()) -> list[Tensor]:
    """Return the weights after one step per big batch."""
    model, data = model_and_data(seed)
    shell = Shell(model, OPTIMIZERS[optimizer](model), list(hooks))
    for inputs, targets in data:
        with shell.batch():
            shell.update(mse_loss(model(inputs), targets))
    return [leaf.detach() for leaf in model.parameters()]


def in_pieces(seed: int, optimizer: str, hooks: Any, cuts: list[int], weighted: bool) -> list[Tensor]:
    """Return the weights after one step per window of pieces of the big batches."""
    model, data = model_and_data(seed)
    shell = Shell(model, OPTIMIZERS[optimizer](model), hooks)
    edges = [0, *sorted(cuts), ROWS]
    for inputs, targets in data:
        for start, end in pairwise(edges):
            with shell.batch():
                loss = mse_loss(model(inputs[start:end]), targets[start:end])
                shell.update(loss, end - start if weighted else None)
    assert shell.state.clock.step == WINDOWS
    return [leaf.detach() for leaf in model.parameters()]


def assert_close(found: list[Tensor], right: list[Tensor]) -> None:
    """Compare in float64; Adam divides by small numbers."""
    torch.testing.assert_close(found, right, rtol=1e-7, atol=1e-9)


@given(seed=seeds, optimizer=optimizers, every=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_equal_pieces_are_one_batch(seed: int, optimizer: str, every: int) -> None:
    """Windows of k equal micro-batches train as batches k times the size."""
    cuts = list(range(ROWS // every, ROWS, ROWS // every))
    found = in_pieces(seed, optimizer, [Accumulate(every=every), ClipNorm(max_norm=0.5)], cuts, weighted=False)
    assert_close(found, in_one_batch(seed, optimizer, [ClipNorm(max_norm=0.5)]))


@given(seed=seeds, optimizer=optimizers, cuts=st.lists(st.integers(1, ROWS - 1), unique=True, max_size=6))
def test_weighted_pieces_are_one_batch(seed: int, optimizer: str, cuts: list[int]) -> None:
    """Micro-batches of any sizes, weighted by them, train as one batch of all rows."""
    found = in_pieces(seed, optimizer, [Accumulate(every=len(cuts) + 1)], cuts, weighted=True)
    assert_close(found, in_one_batch(seed, optimizer))


@given(seed=seeds, sizes=st.lists(st.integers(1, 4), min_size=2, max_size=5), data=st.data())
def test_what_is_dropped_was_never_in_the_window(seed: int, sizes: list[int], data: st.DataObject) -> None:
    """With weights, a window from which micro-batches were dropped trains as one batch of the other rows."""
    bad = data.draw(st.sets(st.integers(0, len(sizes) - 1), max_size=len(sizes) - 1))
    model, _ = model_and_data(seed)
    twin, _ = model_and_data(seed)
    shell = Shell(model, SGD(model.parameters(), lr=0.1), Accumulate(every=len(sizes)) + SkipNonFinite())
    pieces = [(torch.randn(size, 3).double(), torch.randn(size, 2).double()) for size in sizes]
    for place, (inputs, targets) in enumerate(pieces):
        with shell.batch():
            shell.update(mse_loss(model(inputs), targets) * (float("nan") if place in bad else 1.0), len(inputs))
    good = [piece for place, piece in enumerate(pieces) if place not in bad]
    mse_loss(twin(torch.cat([x for x, _ in good])), torch.cat([y for _, y in good])).backward()
    SGD(twin.parameters(), lr=0.1).step()
    assert_close([leaf.detach() for leaf in model.parameters()], [leaf.detach() for leaf in twin.parameters()])


@given(seed=seeds, power=st.integers(1, 24), every=st.integers(1, 3), scale=st.sampled_from([2.0**10, 2.0**24]))
def test_counts_of_tokens_cost_no_loss_scale(seed: int, power: int, every: int, scale: float) -> None:
    """In fp16 windows of large weights overflow exactly where windows of weights of 1 do, and end at the same bits."""
    found = []
    for weight in (1, 2**power):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        hooks = Accumulate(every=every) + MixedPrecision(precision="fp16", init_scale=scale, max_consecutive=None)
        shell = Shell(model, SGD(model.parameters(), lr=0.1), hooks)
        for _ in range(every * 6):
            with shell.batch():
                shell.update(mse_loss(model(torch.randn(4, 3)), torch.randn(4, 2)), weight)
        found.append((shell.state.scaler["scale"], shell.state.clock.step, *model.parameters()))
    assert found[0][:2] == found[1][:2]
    torch.testing.assert_close(found[0][2:], found[1][2:], rtol=0, atol=0)
