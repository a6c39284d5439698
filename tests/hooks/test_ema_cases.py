"""The rows E of the cases: averages of weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from functrain import EMA, Accumulate, Shell, SkipNonFinite
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import half, vetoing

INF = float("inf")


def shadow_of(shell: Shell, name: str = "ema") -> Any:
    """Return the averaged weight, or weights."""
    return shell.state.hooks[name]["shadow"]["w"].tolist()


def shadows(shell: Shell, slopes: list[float]) -> list[float]:
    """Run micro-batches and return the average after each."""
    return [step(shell, slope) or shadow_of(shell) for slope in slopes]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_e01_a_slow_average_does_not_stall(dtype: torch.dtype) -> None:
    """Shadow 1, weights 2, decay .999, 1000 updates: 1.6323 whatever the weights are kept in."""
    shell = sgd_shell(model := Weight(1.0, dtype), EMA(decay=0.999))
    step(shell, 0.0)
    nn.init.constant_(model.w, 2.0)
    run(shell, [0.0] * 1000)
    assert shadow_of(shell) == pytest.approx(1.6323, abs=5e-5)
    assert shell.averaged_module().w.dtype is dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_e02_the_shadow_of_low_precision_is_float32(dtype: torch.dtype) -> None:
    """Shadow 0, a weight of 1, decay .9: .1 in fp32."""
    shell = sgd_shell(model := Weight(0.0, dtype), EMA(decay=0.9))
    step(shell, 0.0)
    nn.init.ones_(model.w)
    step(shell, 0.0)
    shadow = shell.state.hooks["ema"]["shadow"]["w"]
    assert (shadow.dtype, shadow.item()) == (torch.float32, torch.tensor(1.0 - 0.9).item())


@pytest.mark.parametrize("use_buffers", [True, False])
@pytest.mark.parametrize("every", [1, 2])
def test_e03_counters_in_buffers_are_copied(use_buffers: bool, every: int) -> None:
    """After 10 batches `num_batches_tracked` of the average is 10."""
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    hooks = [EMA(use_buffers=use_buffers, update_every=every, decay=0.9), Accumulate(every=1)]
    shell = sgd_shell(model, hooks, lr=0.1)
    for _ in range(10):
        with shell.batch():
            shell.update(model(torch.randn(4, 1)).square().mean())
    averaged = shell.averaged_module()
    assert (averaged[1].num_batches_tracked.item(), averaged[1].num_batches_tracked.dtype) == (10, torch.int64)
    assert torch.equal(averaged[1].running_mean, model[1].running_mean) is not use_buffers


def test_e04_averages_move_once_per_step() -> None:
    """K=4, weights 1, 2, 3 after three steps, decay .5: 1, 1.5, 2.25."""
    shell = sgd_shell(Weight(), [Accumulate(every=4), EMA(decay=0.5)])
    assert shadows(shell, [-1.0] * 12)[3::4] == [1.0, 1.5, 2.25]


@pytest.mark.parametrize("place", range(4))
def test_e05_overflows_do_not_move_the_average(place: int) -> None:
    """Shadow 0, one step to weight 1 and three overflowed ones in any order, decay .9: .1."""
    shell = sgd_shell(Weight(), half(init_scale=1024.0) + EMA(decay=0.9))
    run(shell, [0.0] + [-1.0 if each == place else INF for each in range(4)])
    assert shadow_of(shell) == pytest.approx(0.1, abs=1e-7)


def updates(shell: Shell, count: int) -> list[int]:
    """Return the steps at which the average was updated."""
    found, before = [], 0
    for _ in range(count):
        step(shell, 1.0)
        now = shell.state.hooks["ema"]["n_averaged"]
        found += [shell.state.clock.step] * (now - before)
        before = now
    return found


def test_e06_every_so_many_completed_steps() -> None:
    """Every 4, eight steps: at completed steps 4 and 8."""
    assert updates(sgd_shell(Weight(), EMA(update_every=4)), 8) == [4, 8]


def test_e07_a_start_does_not_shift_the_rhythm() -> None:
    """start_step 5, every 2: 6, 8, 10."""
    assert updates(sgd_shell(Weight(), EMA(update_every=2, start_step=5)), 10) == [6, 8, 10]


@given(every=st.integers(1, 4), start=st.integers(0, 6), k=st.integers(1, 2), vetoed=st.frozensets(st.integers(0, 20)))
def test_e07_eligible_steps(every: int, start: int, k: int, vetoed: frozenset[int]) -> None:
    """Whatever is vetoed and accumulated: updated at completed steps that are due, and at no other."""
    shell = sgd_shell(Weight(), [Accumulate(every=k), vetoing(vetoed), EMA(update_every=every, start_step=start)])
    found = updates(shell, 20)
    assert found == [n for n in range(1, shell.state.clock.step + 1) if n >= start and n % every == 0]


@pytest.mark.parametrize("resumed", [True, False])
def test_e09_a_checkpoint_inside_holds_both(resumed: bool) -> None:
    """Raw 2, shadow 1.1: saved inside averaged(), the raw weight stays 2, there and in training that goes on."""
    shell = ready()
    with shell.averaged():
        assert shell._driver.applier.models.modules["main"].w.item() == pytest.approx(1.1)
        kept = shell.state_dict() if resumed else shell.snapshot()
    assert applied(shell) == -2.0
    other = sgd_shell(Weight(7.0), EMA(decay=0.9)) if resumed else shell
    other.load_state_dict(kept) if resumed else other.restore(kept)
    assert (applied(other), shadow_of(other)) == (-2.0, pytest.approx(1.1))
    step(other, -1.0)
    assert (applied(other), shadow_of(other)) == (-3.0, pytest.approx(1.29))


def ready() -> Shell:
    """Return a shell with a raw weight of 2 and a shadow of 1.1."""
    shell = sgd_shell(Weight(), EMA(decay=0.9))
    run(shell, [-1.0, -1.0])
    return shell


def test_e10_averaged_may_be_nested() -> None:
    """Entered twice and left twice: averaged inside both, raw 2 afterwards."""
    shell = ready()
    with shell.averaged():
        with shell.averaged():
            assert applied(shell) == pytest.approx(-1.1)
        assert applied(shell) == pytest.approx(-1.1)
    assert applied(shell) == -2.0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_e10_averaged_may_be_left_by_an_exception(error: type[BaseException]) -> None:
    """An exception in the inner one leaves both: raw 2 afterwards, and training goes on."""
    shell = ready()
    with pytest.raises(error), shell.averaged(), shell.averaged():
        raise error
    step(shell, -1.0)
    assert (applied(shell), shadow_of(shell)) == (-3.0, pytest.approx(1.29))


def legacy(layer: nn.Module) -> nn.Module:
    """Return a layer under the old weight norm, whose weight is no leaf: `deepcopy` refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


NORMED: list[Callable[[nn.Module], nn.Module]] = [
    legacy,
    nn.utils.parametrizations.weight_norm,
    nn.utils.parametrizations.spectral_norm,
    nn.utils.parametrizations.orthogonal,
]


@pytest.mark.parametrize("normed", NORMED)
def test_e12_normalized_layers_are_averaged(normed: Callable[[nn.Module], nn.Module]) -> None:
    """Weight norm old and new and other parametrisations: the average works, and evaluates what it holds."""
    torch.manual_seed(0)
    model = nn.Sequential(normed(nn.Linear(3, 3)), nn.Linear(3, 1))
    shell = sgd_shell(model, EMA(decay=0.5), lr=0.1)
    x = torch.randn(4, 3)
    for _ in range(3):
        with shell.batch():
            shell.update(model(x).square().mean())
    raw, averaged = model.eval()(x), shell.averaged_module().eval()(x)
    with shell.averaged():
        assert torch.allclose(model(x), averaged)
    assert not torch.allclose(raw, averaged)
    assert torch.equal(model(x), raw)


class Late(nn.Module):
    """A frozen parameter before a trainable one."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.tensor(5.0), requires_grad=False)
        self.w = nn.Parameter(torch.tensor(0.0))

    def forward(self, slope: float) -> Tensor:
        """Return a loss whose gradient is the slope."""
        return self.w * slope


def test_e13_weights_are_paired_by_name() -> None:
    """A frozen parameter keeps its own average, and the trainable one behind it follows its own weight."""
    model = Late()
    shell = Shell(model, torch.optim.SGD([model.w], lr=1.0), EMA(decay=0.5))
    run(shell, [-1.0, -1.0])
    assert {name: held.item() for name, held in shell.state.hooks["ema"]["shadow"].items()} == {"frozen": 5.0, "w": 1.5}
    nn.init.constant_(model.frozen, 7.0)
    run(shell, [-1.0])
    assert {name: held.item() for name, held in shell.averaged_module().named_parameters()} == {
        "frozen": 6.0,
        "w": 2.25,
    }


@pytest.mark.parametrize("asked", [lambda shell: shell.averaged().__enter__(), lambda shell: shell.averaged_module()])
def test_e16_before_any_update_there_is_no_average(asked: Any) -> None:
    """RuntimeError that says when it will exist, also after steps that were not eligible or not executed."""
    shell = sgd_shell(Weight(), SkipNonFinite() + EMA(start_step=3, update_every=2))
    run(shell, [1.0, 1.0, INF, 1.0])
    with pytest.raises(RuntimeError, match=r"start_step=3, update_every=2.*3 steps are completed"):
        asked(shell)
    run(shell, [1.0])
    asked(shell)
