"""The rows C of the cases, c01 to c08: a loss scale and what vetoes, raises or overflows around it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from functrain import EMA, Accumulate, ClipNorm, MixedPrecision, SkipLimitError, Stage, prioritized
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import STEP, Planned, half, pair_applied, pair_shell, raising, scaling, step_pair, vetoing

INF = float("inf")


def test_c01_a_veto_of_finite_gradients_leaves_the_scale_and_the_next_step_runs() -> None:
    """A veto of priority 40 closes the scaler's transaction: scale and growth untouched, next step runs."""
    shell = sgd_shell(Weight(), half() + vetoing({0}))
    step(shell, 3.0)
    assert (scaling(shell), applied(shell)) == ((4.0, 0), 0.0)
    step(shell, 1.0)
    assert (scaling(shell), applied(shell)) == ((4.0, 1), 1.0)


def test_c02_a_veto_of_an_overflow_backs_off_and_the_next_step_runs() -> None:
    """The scale backs off once although a later hook vetoed too."""
    shell = sgd_shell(Weight(), half() + vetoing({0}))
    step(shell, INF)
    assert (scaling(shell), applied(shell)) == ((2.0, 0), 0.0)
    step(shell, 1.0)
    assert (scaling(shell), applied(shell)) == ((2.0, 1), 1.0)


@pytest.mark.parametrize("slope", [3.0, INF])
def test_c02_a_veto_that_came_before_is_no_scaler_event(slope: float) -> None:
    """Vetoed before priority 20 nothing is judged, so nothing backs off; the next step runs."""
    shell = sgd_shell(Weight(), half() + vetoing({1}, priority=15))
    run(shell, [1.0, slope])
    assert scaling(shell) == (4.0, 1)
    step(shell, 1.0)
    assert (scaling(shell), applied(shell)) == ((4.0, 2), 2.0)


@pytest.mark.parametrize("priority", [15, 20, 25, 40, 60])
@pytest.mark.parametrize("stage", [Stage.BEFORE_OPTIMIZER_STEP, STEP])
@pytest.mark.parametrize("slope", [3.0, INF])
def test_c03_an_exception_between_unscale_and_step_does_not_block(priority: int, stage: Stage, slope: float) -> None:
    """Whatever raised after unscaling, the next batch trains, on its own gradient only."""
    fuse: list[BaseException] = [Planned()]
    shell = sgd_shell(Weight(), half() + raising(stage, fuse, priority=priority))
    with pytest.raises(Planned):
        step(shell, slope)
    assert (scaling(shell), applied(shell)) == ((4.0, 0), 0.0)
    step(shell, 1.0)
    assert (scaling(shell), applied(shell)) == ((4.0, 1), 1.0)


def test_c04_a_window_is_unscaled_once() -> None:
    """Both micro-batches of a window carry the same scale until its boundary."""
    shell = sgd_shell(Weight(), MixedPrecision(precision="float16") + Accumulate(every=2))
    run(shell, [2.0, 3.0])
    assert applied(shell) == 2.5


@pytest.mark.parametrize("priority", [5, 10, 20])
def test_c04_a_window_that_overflows_backs_off_once(priority: int) -> None:
    """Judged at the boundary only, whatever the priority: the scale does not move in the middle of a window."""
    shell = sgd_shell(Weight(), [prioritized(priority, half()), Accumulate(every=2)])
    found = [step(shell, slope) or scaling(shell) for slope in (INF, 1.0, 2.0, 4.0)]
    assert found == [(4.0, 0), (2.0, 0), (2.0, 0), (2.0, 1)]
    assert applied(shell) == 3.0


def test_c05_optimizers_overflow_one_by_one() -> None:
    """One optimizer skips and the other steps, once unscaled; schedulers and averages follow their own."""
    hooks = half() + EMA(model_key="a") + EMA(model_key="b")
    shell = pair_shell(hooks, lambda optimizer: StepLR(optimizer, 1, gamma=0.5))
    step_pair(shell, a=INF, b=1.0)
    assert dict(shell.state.stepped) == {"a": False, "b": True}
    assert dict(shell.state.scaler["found_inf"]) == {"a": True, "b": False}
    assert pair_applied(shell) == {"a": 0.0, "b": 1.0}
    rates = [each.param_groups[0]["lr"] for each in shell._driver.applier.optimizers.by_key.values()]
    assert rates == [1.0, 0.5]
    assert [shell.state.hooks[f"ema_{key}"]["n_averaged"] for key in "ab"] == [0, 1]
    assert (scaling(shell), shell.state.clock.step, shell.state.clock.skipped) == ((2.0, 0), 1, 0)


def test_c05_both_train_on_after_one_overflowed() -> None:
    """After the partial step both optimizers step again, at the new scale."""
    shell = pair_shell(half())
    step_pair(shell, a=INF, b=1.0)
    step_pair(shell, a=2.0, b=1.0)
    assert (pair_applied(shell), scaling(shell)) == ({"a": 2.0, "b": 2.0}, (2.0, 1))


def test_c05_clipping_measures_only_what_will_be_applied() -> None:
    """The norm leaves an overflowed optimizer out: (inf, 4) at max_norm 1 applies 1 to b."""
    shell = pair_shell(half() + ClipNorm(max_norm=1.0))
    step_pair(shell, a=INF, b=4.0)
    assert shell.state.metrics["grad_norm"].item() == 4.0
    assert pair_applied(shell) == pytest.approx({"a": 0.0, "b": 1.0}, abs=1e-6)


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_c06_an_optimizer_without_gradients_is_a_no_op(precision: str) -> None:
    """It counts as stepped, with nothing to do, and the other one steps."""
    shell = pair_shell(MixedPrecision(precision=precision))
    step_pair(shell, b=3.0)
    assert pair_applied(shell) == {"a": 0.0, "b": 3.0}
    assert dict(shell.state.stepped) == {"a": True, "b": True}


def test_c06_the_only_one_with_gradients_overflows() -> None:
    """An overflow of everything that has gradients is a skip, whoever else has none."""
    shell = pair_shell(half())
    step_pair(shell, b=INF)
    assert dict(shell.state.stepped) == {"a": False, "b": False}
    assert (scaling(shell), shell.state.clock.skipped) == ((2.0, 0), 1)


@pytest.mark.parametrize(("options", "floor"), [({}, 1.0), ({"backoff_factor": 0.3, "min_scale": 8.0}, 8.0)])
def test_c07_overflows_without_end_stop_at_the_floor(options: dict[str, float], floor: float) -> None:
    """The scale stops at min_scale, SkipLimitError is raised past 100, no NaN is written, training can go on."""
    shell = sgd_shell(Weight(), MixedPrecision(precision="float16", **options))
    run(shell, [INF] * 100)
    for _ in range(66):
        with pytest.raises(SkipLimitError, match="'precision' skipped again"):
            step(shell, INF)
    assert (shell.state.scaler["scale"], applied(shell)) == (floor, 0.0)
    step(shell, 1.0)
    assert applied(shell) == 1.0


@pytest.mark.parametrize("scale", [2.0**-128, 2.0**-140, 0.0, INF])
def test_c08_an_impossible_scale_is_judged_after_unscaling(scale: float) -> None:
    """A gradient that only unscaling makes infinite is vetoed, and the scale comes back into its bounds."""
    shell = sgd_shell(Weight(1.0), half())
    taken = shell.snapshot()
    shell.restore(replace(taken, state=taken.state.replace(scaler=taken.state.scaler | {"scale": scale})))
    step(shell, 2.0)
    assert applied(shell) == -1.0
    assert 1.0 <= shell.state.scaler["scale"] <= 2.0**24
    step(shell, 0.5)
    assert applied(shell) == -0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_validation_runs_in_the_same_precision(dtype: torch.dtype) -> None:
    """The autocast for inference has the dtype of the hook, also where it is not the default of the device."""
    with MixedPrecision(precision=dtype).inference_autocast(torch.device("cpu")):
        assert torch.get_autocast_dtype("cpu") is dtype
        assert torch.is_autocast_enabled("cpu")
