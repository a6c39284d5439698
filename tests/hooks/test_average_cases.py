"""The rows E of the cases that a configuration answers, in the shell and in the pure engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from functrain import EMA, SWA, Lookahead, PowerEMA, Shell, SwitchEMA, TensorFlowWarmup, gamma_of, pure
from functrain.testing.training import Training
from functrain.testing.twins import Twins
from tests.scalars import Weight, run, sgd_shell, step

NAN = float("nan")


def twins(hooks: Any, slopes: list[float], start: float = 0.0) -> Twins:
    """Return both interpreters after micro-batches whose gradients are the slopes, and the same so far."""
    training = Training(
        model=lambda: Weight(start),
        loss_fn=lambda model, slope: model(slope),
        optimizer=lambda params: torch.optim.SGD(params, lr=1.0),
        batches=[torch.tensor(slope) for slope in slopes],
        hooks=hooks,
    )
    both = Twins(training)
    for place in range(len(slopes)):
        both.happen("fine", place)
        assert list(both.differences()) == []
    return both


def shadow(found: Twins, name: str = "ema") -> float:
    """Return the averaged weight."""
    return found.state.hooks[name]["shadow"]["w"].item()


@pytest.mark.parametrize(
    ("slopes", "right"),
    [([-1.0], 1.0), ([-1.0, -1.0], 1.5), ([-1.0, -1.0, -1.0], 2.25)],
)
def test_e04_in_both_interpreters(slopes: list[float], right: float) -> None:
    """Weights 1, 2, 3, decay .5: 1, 1.5, 2.25."""
    assert shadow(twins(EMA(decay=0.5), slopes)) == right


def test_e01_in_both_interpreters() -> None:
    """Shadow 1, weights 2 held fixed, decay .999, 1000 updates: 1.6323."""
    start = twins(EMA(decay=0.999), [0.0, -1.0] + [0.0] * 999, start=1.0)
    assert shadow(start) == pytest.approx(1.6323, abs=5e-5)


@pytest.mark.parametrize("resumed", [False, True])
def test_e08_the_decay_grows_with_the_lerps_done(resumed: bool) -> None:
    """Decay (1 + n) / (10 + n): .1, 2/11, 3/12, and the count survives a resume; the copy uses none."""
    hook = EMA(decay=0.9999, warmup=TensorFlowWarmup())
    shell = sgd_shell(Weight(), hook)
    run(shell, [0.0, -1.0, 0.0])
    decays = [0.1, 2 / 11]
    if resumed:
        other = sgd_shell(Weight(), hook)
        other.load_state_dict(shell.state_dict())
        shell = other
    run(shell, [0.0])
    right = decays[0] * decays[1] * 3 / 12
    assert 1 - shell.state.hooks["ema"]["shadow"]["w"].item() == pytest.approx(right, abs=1e-7)
    assert shadow(twins(hook, [0.0, -1.0, 0.0, 0.0])) == pytest.approx(1 - right, abs=1e-7)


def test_e14_a_guarded_average_survives_a_weight_that_is_not_finite() -> None:
    """Decay .9, shadow 1, weights NaN, 1, 1: the guarded average is 1, the other one NaN for ever."""
    hooks = [EMA(decay=0.9, finite_only=True), EMA(decay=0.9, name="bare")]
    shell = sgd_shell(model := Weight(1.0), hooks)
    for weight in (1.0, NAN, 1.0, 1.0):
        torch.nn.init.constant_(model.w, weight)
        step(shell, 0.0)
    found = {name: shell.state.hooks[name]["shadow"]["w"].item() for name in ("ema", "bare")}
    assert found["ema"] == 1.0
    assert found["bare"] != found["bare"]


def test_e14_in_the_pure_engine() -> None:
    """The same where everything is selected, and nothing leaks into the gradient to the decay."""

    def after(decay: torch.Tensor) -> torch.Tensor:
        init, update, _ = pure.train_step(
            lambda params, _, x: params["w"] * x, pure.sgd(1.0), EMA(finite_only=True), differentiable=True
        )
        state = init({"w": torch.tensor(1.0)})
        state = state.with_slot("ema", state.hooks["ema"] | {"decay": decay})
        for slope in (0.0, -1.0):
            state = update(state, torch.tensor(slope))
        broken = state.replace(params={"main": {"w": torch.tensor(NAN)}})
        state = update(broken, torch.tensor(0.0))
        return state.hooks["ema"]["shadow"]["w"]

    decay = torch.tensor(0.9, dtype=torch.float64)
    assert after(decay).item() == pytest.approx(1.1)
    assert torch.func.grad(lambda value: after(value).double())(decay).item() == pytest.approx(-1.0)


def ramp(hook: Any, count: int = 2000) -> Shell:
    """Return a shell after a run in which the weight is the part of it that is over."""
    shell = sgd_shell(Weight(0.0, torch.float64), hook)
    run(shell, [-1.0 / count] * count)
    return shell


def power_average(every: int, count: int) -> float:
    """Return what a hand-written loop keeps of the part of the run that is over, at a width of .1."""
    found = 0.0
    for place in range(every, count + 1, every):
        beta = (1 - every / place) ** (gamma_of(0.1) + 1)
        found = beta * found + (1 - beta) * place / count
    return found


@pytest.mark.parametrize("every", [1, 10, 50])
def test_e17_the_width_of_a_power_average_minds_the_width_of_its_steps(every: int) -> None:
    """P = t / 2000, relative standard deviation .1, every 10: .8906, and so by any other step."""
    assert gamma_of(0.1) == pytest.approx(6.9372, abs=5e-5)
    found = ramp(PowerEMA(relative_std=0.1, update_every=every)).state.hooks["power_ema"]["shadow"]["w"].item()
    assert found == pytest.approx(power_average(every, 2000), abs=1e-12)
    if every == 10:
        assert found == pytest.approx(0.8906, abs=1e-4)


def test_e17_in_both_interpreters() -> None:
    """Every 2 of 20 steps."""
    found = twins(PowerEMA(relative_std=0.1, update_every=2), [-0.05] * 20)
    assert found.state.hooks["power_ema"]["n_averaged"].item() == 10
    assert shadow(found, "power_ema") == pytest.approx(power_average(2, 20), abs=1e-6)


def test_equal_weights() -> None:
    """The average of 1, 2, 3, 4 is 2.5; from step 3 on 3.5."""
    found = twins([SWA(), SWA(start_step=3, name="late")], [-1.0] * 4)
    assert (shadow(found, "swa"), shadow(found, "late")) == (2.5, 3.5)


def test_half_life() -> None:
    """A weight counts half after three steps, also where every third step is averaged."""
    for every in (1, 3):
        found = twins(EMA(half_life=3.0, update_every=every), [0.0] * 3 + [-1.0] + [0.0] * 2)
        assert shadow(found) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(("first", "right"), [("copy", [1.0, 1.5]), ("lerp", [0.5, 1.25]), ("zero", [1.0, 5 / 3])])
def test_the_first_update_is_what_was_asked_for(first: Any, right: list[float]) -> None:
    """Weights 1, 2, decay .5: copied, moved from the 0 of the start, or debiased: (.25 + 1) / .75."""
    for place, value in enumerate(right, 1):
        assert shadow(twins(EMA(decay=0.5, first=first), [-1.0] * place)) == pytest.approx(value)


def test_from_zero_is_what_adam_does() -> None:
    """The debiased shadow is m / (1 - decay ** t), at any decay and after any update."""
    moment, weights = 0.0, [1.0, 3.0, -2.0, 0.5]
    for count in range(1, 5):
        moment = 0.9 * moment + (1 - 0.9) * weights[count - 1]
        slopes = [before - after for before, after in zip([0.0, *weights], weights[:count], strict=False)]
        found = twins(EMA(decay=0.9, first="zero"), slopes)
        assert shadow(found) == pytest.approx(moment / (1 - 0.9**count), rel=1e-6)


def test_switching_writes_the_average_into_the_weights() -> None:
    """Decay .5, every 2 steps: weights 1, 2 make 1.5, which training goes on from; then 2.5 and 3.5."""
    found = twins(SwitchEMA(switch_every=2, decay=0.5), [-1.0] * 2)
    assert found.state.params["main"]["w"].item() == shadow(found, "switch_ema") == 1.5
    found = twins(SwitchEMA(switch_every=2, decay=0.5), [-1.0] * 4)
    assert found.state.params["main"]["w"].item() == ((1.5 + 2.5) / 2 + 3.5) / 2


def test_nothing_is_switched_before_there_is_an_average() -> None:
    """Until the third step the weights are the optimizer's own."""
    found = twins(SwitchEMA(switch_every=1, decay=0.5, start_step=3), [-1.0] * 2)
    assert found.state.params["main"]["w"].item() == 2.0


def test_lookahead() -> None:
    """Five steps forward and half of them back, twice: 2.5 and 5.0; in between the optimizer's own."""
    for count, right in ((4, 4.0), (5, 2.5), (9, 6.5), (10, 5.0)):
        found = twins(Lookahead(), [-1.0] * count)
        assert found.state.params["main"]["w"].item() == right
        assert shadow(found, "lookahead") == 2.5 * (count // 5)


def test_others_average_what_training_goes_on_from() -> None:
    """An average after a Lookahead sees the slow weights, wherever it was listed."""
    found = twins([EMA(decay=0.5), Lookahead(update_every=1)], [-1.0] * 2)
    assert shadow(found) == (0.5 + 1.0) / 2


def test_no_new_tensors_where_weights_are_written() -> None:
    """The parameters of the module stay the objects that they are, in the same storage, and the optimizer's."""
    shell = sgd_shell(model := Weight(), Lookahead(update_every=1))
    before = (model.w, model.w.data_ptr())
    run(shell, [-1.0] * 3)
    assert model.w is before[0]
    assert (model.w.data_ptr(), model.w.item()) == (before[1], 1.5)


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_written_back_has_the_dtype_of_the_weight(strict: bool) -> None:
    """A shadow in float64 beside a weight in float32, in place and as new tensors alike."""
    shell = sgd_shell(Weight(), Lookahead(update_every=1, dtype="float64"), strict=strict)
    run(shell, [-1.0] * 2)
    weight = shell.state.params["main"]["w"]
    assert (weight.dtype, weight.item()) == (torch.float32, 1.0)
    assert shell.state.hooks["lookahead"]["shadow"]["w"].dtype == torch.float64
    init, step, _ = pure.train_step(lambda params, _buffers, _batch: -params["w"].sum(), pure.sgd(1.0), shell.pipeline)
    state = init({"w": torch.zeros(())})
    state = step(step(state, torch.zeros(())), torch.zeros(()))
    assert (state.params["main"]["w"].dtype, state.params["main"]["w"].item()) == (torch.float32, 1.0)
