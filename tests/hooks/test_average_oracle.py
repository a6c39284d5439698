"""The family beside its sources, bitwise, on models of drawn shapes and in both interpreters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from functrain import (
    EMA,
    SWA,
    Lookahead,
    PowerEMA,
    PowerSnapshot,
    SwitchEMA,
    gamma_of,
    post_hoc_average,
    post_hoc_coefficients,
)
from functrain.testing.training import Training
from functrain.testing.twins import Twins
from tests.scripted import vetoing

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4)
steps = st.lists(st.booleans(), min_size=1, max_size=8)


class Drawn(nn.Module):
    """Parameters of any shapes, one of them tied, one frozen, and what BatchNorm keeps."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(len(shapes))
        self.leaves = nn.ParameterList(nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes)
        self.again = self.leaves[0]
        self.frozen = nn.Parameter(torch.randn(2, generator=generator), requires_grad=False)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss that moves everything."""
        return self.norm(x).square().mean() + sum(leaf.square().sum() for leaf in self.leaves)


def run(shapes: Any, hooks: Any, going: list[bool], after_each: Any) -> Twins:
    """Run both interpreters, which stay the same, and call a function with the shell's model after each step."""
    batches = [torch.randn(4, 2, generator=torch.Generator().manual_seed(place)) for place in range(len(going))]
    vetoed = [place for place, goes in enumerate(going) if not goes]
    training = Training(
        model=lambda: Drawn(shapes),
        loss_fn=lambda model, x: model(x),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        batches=batches,
        hooks=[*hooks, vetoing(vetoed)],
    )
    twins = Twins(training)
    for place, goes in enumerate(going):
        twins.happen("fine", place)
        assert list(twins.differences()) == []
        if goes:
            after_each(twins.run.models)
    return twins


def floats(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and float buffers by name."""
    found = [*module.named_parameters(), *module.named_buffers()]
    return {name: held for name, held in found if held.is_floating_point()}


def mean_of_floats(averaged: Any, current: Any, count: Any) -> None:
    """Average as torch does, integers left out: on those, such as BatchNorm's counter, torch 2.13 raises."""
    if averaged[0].is_floating_point():
        get_swa_multi_avg_fn()(averaged, current, count)


RULES = {
    "ema": (lambda **options: EMA(decay=0.9, **options), get_ema_multi_avg_fn(0.9)),
    "swa": (SWA, mean_of_floats),
}


@given(shapes=shapes, going=steps, rule=st.sampled_from(sorted(RULES)), every=st.integers(1, 2), use=st.booleans())
def test_shell_engine_and_averaged_model(shapes: Any, going: list[bool], rule: str, every: int, use: bool) -> None:
    """Whatever the shapes and the vetoes: three times the same bits."""
    made, average = RULES[rule]
    oracle, count = AveragedModel(Drawn(shapes), multi_avg_fn=average, use_buffers=use), [0]

    def update(model: nn.Module) -> None:
        count[0] += 1
        if count[0] % every == 0:
            oracle.update_parameters(model)

    twins = run(shapes, [made(update_every=every, use_buffers=use)], going, update)
    if not oracle.n_averaged:
        return
    slot = twins.state.hooks[rule]
    found, right = {**slot["shadow"], **slot["buffers"]}, floats(oracle.module)
    assert all(torch.equal(found[name], leaf) for name, leaf in right.items())
    handed = floats(twins.shell.averaged_module(rule))
    assert all(torch.equal(handed[name], leaf) for name, leaf in right.items())


@given(going=steps, k=st.integers(1, 3), alpha=st.sampled_from([0.1, 0.5, 0.8, 1.0]))
def test_lookahead_beside_its_algorithm(going: list[bool], k: int, alpha: float) -> None:
    """Slow weights move by alpha every k steps, and the fast ones start again from there: algorithm 1 of the paper."""
    fast, slow, momentum, count = torch.tensor(3.0), torch.tensor(3.0), torch.tensor(0.0), 0
    twins = one_weight([Lookahead(update_every=k, alpha=alpha)], going)
    for goes in going:
        if goes:
            momentum = 0.9 * momentum + 2 * fast
            fast, count = fast - 0.05 * momentum, count + 1
            if count % k == 0:
                slow = fast = slow + alpha * (fast - slow)
    torch.testing.assert_close(twins.state.params["main"]["w"], fast, rtol=1e-5, atol=1e-6)


@given(going=steps, k=st.integers(1, 3))
def test_switching_beside_its_algorithm(going: list[bool], k: int) -> None:
    """The average of every step replaces the weights every k steps."""
    fast, average, momentum, count = torch.tensor(3.0), torch.tensor(0.0), torch.tensor(0.0), 0
    twins = one_weight([SwitchEMA(switch_every=k, decay=0.75)], going)
    for goes in going:
        if goes:
            momentum = 0.9 * momentum + 2 * fast
            fast, count = fast - 0.05 * momentum, count + 1
            average = fast if count == 1 else 0.75 * average + 0.25 * fast
            fast = average if count % k == 0 else fast
    torch.testing.assert_close(twins.state.params["main"]["w"], fast, rtol=1e-5, atol=1e-6)


def one_weight(hooks: Any, going: list[bool]) -> Twins:
    """Return both interpreters after a run on w squared, from 3."""
    model = nn.ParameterDict({"w": torch.tensor(3.0)})
    training = Training(
        model=lambda: nn.ParameterDict({"w": model["w"].detach().clone()}),
        loss_fn=lambda module, batch: module["w"].square() * batch,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        batches=[torch.ones(())] * len(going),
        hooks=[*hooks, vetoing([place for place, goes in enumerate(going) if not goes])],
    )
    twins = Twins(training)
    for place in range(len(going)):
        twins.happen("fine", place)
        assert list(twins.differences()) == []
    return twins


@pytest.mark.parametrize(("wanted", "near"), [(0.05, 1e-12), (0.06, 2e-3), (0.08, 1e-3), (0.12, 1e-3), (0.15, 3e-3)])
def test_post_hoc_profiles(wanted: float, near: float) -> None:
    """Widths .05 and .1 saved 32 times: the profile of another width comes out to a part in a thousand."""
    places = [(1024 * place // 32, std) for place in range(1, 33) for std in (0.05, 0.1)]
    numbers = torch.tensor(post_hoc_coefficients(places, wanted), dtype=torch.float64)
    found = numbers @ torch.stack([profile(*place) for place in places])
    right = profile(1024, wanted)
    assert (found - right).norm() <= near * right.norm()
    assert numbers.sum().item() == pytest.approx(1.0)


def profile(step: int, std: float, length: int = 1024) -> Tensor:
    """Return by how much each step counts in an average that is updated every step."""
    found = torch.zeros(length, dtype=torch.float64)
    for place in range(1, step + 1):
        beta = (1 - 1 / place) ** (gamma_of(std) + 1)
        found *= beta
        found[place - 1] += 1 - beta
    return found


def test_post_hoc_equals_direct_tracking() -> None:
    """A width that was not tracked, reconstructed from .05 and .1, beside the one tracked along: to a part in 1000."""
    stds = {"low": 0.05, "high": 0.1, "right": 0.08}
    hooks = [PowerEMA(relative_std=std, name=name) for name, std in stds.items()]
    shell = run_along(hooks, 512)
    saved = [each for found in shell[:-1] for each in found] + list(shell[-1])
    snapshots = [each for each in saved if each.relative_std != stds["right"]]
    right = next(each for each in shell[-1] if each.relative_std == stds["right"]).weights["w"]
    found = post_hoc_average(snapshots, stds["right"])["w"]
    assert (found - right).norm() <= 1e-3 * right.norm()
    raw = next(each for each in shell[-1] if each.relative_std == 0.05).weights["w"]
    assert (raw - right).norm() >= 1e-2 * right.norm()


def run_along(hooks: Sequence[PowerEMA], count: int) -> list[list[PowerSnapshot]]:
    """Return what averages of a weight that wanders hold, 32 times."""
    from tests.scalars import Weight, sgd_shell, step

    shell = sgd_shell(Weight([0.0, 0.0, 0.0], torch.float64), list(hooks))
    generator, found = torch.Generator().manual_seed(0), list[list[PowerSnapshot]]()
    for place in range(1, count + 1):
        step(shell, torch.randn(3, generator=generator, dtype=torch.float64) / math.sqrt(count) - 1 / count)
        if place % (count // 32) == 0:
            slots = ((each, shell.state.hooks[each.name]["shadow"]) for each in hooks)
            found.append(
                [
                    PowerSnapshot(place, each.relative_std, {name: leaf.clone() for name, leaf in shadow.items()})
                    for each, shadow in slots
                ]
            )
    return found


@pytest.mark.parametrize(
    ("saved", "options", "message"),
    [
        ([], {}, "there are no saved averages"),
        ([PowerSnapshot(9, 0.1, {"w": torch.ones(1)})], {"step": 10}, r"of steps \[9\]; step=10 is out of reach"),
        ([PowerSnapshot(0, 0.1, {"w": torch.ones(1)})], {}, r"of steps \[0\]; step=0 is out of reach"),
        ([PowerSnapshot(9, 0.3, {"w": torch.ones(1)})], {}, r"relative_std must be in \(0, 0\.2886\], got 0\.3"),
        (
            [PowerSnapshot(3, 0.1, {"w": torch.ones(1)}), PowerSnapshot(9, 0.1, {"v": torch.ones(1)})],
            {},
            r"of steps 3 and 9 do not both hold \['v', 'w'\]",
        ),
    ],
    ids=["none", "late", "zero", "width", "names"],
)
def test_what_cannot_be_reconstructed(saved: Any, options: Any, message: str) -> None:
    """Is refused with what there is."""
    with pytest.raises(ValueError, match=message):
        post_hoc_average(saved, 0.1, **options)


def test_what_is_no_float_comes_from_the_latest_snapshot() -> None:
    """A reconstruction takes integers, and the dtype, as the last of three snapshots has them."""
    dtypes = (torch.float64, torch.float64, torch.float32)
    saved = [
        PowerSnapshot(place, 0.1, {"w": torch.ones(1, dtype=dtype), "count": torch.tensor(place)})
        for place, dtype in zip((2, 4, 8), dtypes, strict=True)
    ]
    found = post_hoc_average(saved, 0.1)
    assert (found["count"].item(), found["w"].dtype) == (8, torch.float32)
    assert found["w"].item() == pytest.approx(1.0)


def test_a_reconstruction_is_summed_in_double() -> None:
    """And rounded once, to the dtype of the weights."""
    generator = torch.Generator().manual_seed(0)
    saved = [
        PowerSnapshot(step, std, {"w": torch.randn(500, generator=generator)})
        for step, std in ((4, 0.05), (4, 0.1), (8, 0.05), (8, 0.1))
    ]
    numbers = post_hoc_coefficients([(each.step, each.relative_std) for each in saved], 0.08)
    right = sum(number * each.weights["w"].double() for number, each in zip(numbers, saved, strict=True))
    assert torch.equal(post_hoc_average(saved, 0.08)["w"], torch.as_tensor(right).float())
