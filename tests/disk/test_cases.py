"""Cases whose numbers are known by hand, saved to disk and gone on with in another process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import functrain
from functrain import EMA, Accumulate, Shell, SkipLimitError, SkipNonFinite, TensorFlowWarmup
from tests.disk.process import Elsewhere
from tests.scalars import Weight, applied, run, sgd_shell
from tests.scripted import half


def loaded(path: Path, hooks: Any, slopes: Sequence[float]) -> dict[str, Any]:
    """Load into a shell on another weight, run some slopes, and say what there is."""
    shell = sgd_shell(Weight(7.0), hooks)
    shell.load(path)
    run(shell, slopes)
    scaler = shell.state.scaler
    numbers = (scaler["scale"], scaler["growth_tracker"]) if scaler else None
    return {"applied": applied(shell), "scaler": numbers, "slots": dict(shell.state.hooks)}


def test_a13_in_mid_window(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Saved after micro-batch 2 of 4, 1,2 then 3,4: their mean 2.5 is applied; lost gradients would give 1.75."""
    shell = sgd_shell(Weight(), Accumulate(every=4))
    run(shell, [1.0, 2.0])
    path = functrain.save(tmp_path / "a13", shell)
    assert elsewhere(loaded, path, Accumulate(every=4), [3.0, 4.0])["applied"] == 2.5


def test_c09_scale_and_growth(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Saved at (scale 1024, growth 7), found so again, and not at (65536, 0)."""
    shell = sgd_shell(Weight(), half(init_scale=1024.0))
    run(shell, [0.5] * 7)
    path = functrain.save(tmp_path / "c09", shell)
    hooks = half(init_scale=1024.0)
    assert elsewhere(loaded, path, hooks, [])["scaler"] == (1024.0, 7)
    assert elsewhere(loaded, path, hooks, [0.5])["scaler"] == (1024.0, 8)


def test_e08_the_count_of_a_warm_up(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """The decays .1, .181818 and .25 of (1+n)/(10+n), the copy using none, with a resume between any two of them."""
    hooks = EMA(decay=0.9999, warmup=TensorFlowWarmup())
    straight = sgd_shell(Weight(), hooks)
    shadows = []
    for cut, decay in enumerate([None, 0.1, 2 / 11, 0.25]):
        path = functrain.save(tmp_path / f"e08-{cut}", straight)
        run(straight, [-1.0])
        shadow = straight.state.hooks["ema"]["shadow"]["w"].item()
        found = elsewhere(loaded, path, hooks, [-1.0])["slots"]["ema"]
        assert found["shadow"]["w"].item() == shadow
        shadows.append(shadow)
        if decay is not None:
            assert shadow == pytest.approx(decay * shadows[-2] + (1 - decay) * (cut + 1))


FAMILIES: dict[str, Any] = {
    "swa": functrain.SWA(),
    "power_ema": functrain.PowerEMA(),
    "switch_ema": functrain.SwitchEMA(decay=0.5, switch_every=3),
    "lookahead": functrain.Lookahead(update_every=2),
    "best": EMA(decay=0.5) + functrain.BestAverage(),
    "half_life": EMA(half_life=2.0, first="zero", dtype="float64", finite_only=True),
    "percentile": functrain.ClipPercentile(percentile=50.0, history=3),
    "zscore": functrain.ClipZScore(z=1.5, alpha=0.5, warmup=2),
    "deviations": functrain.SkipSpikes(by=functrain.MedianDeviation(deviations=4.0, history=4, warmup=2)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_goes_on(name: str, elsewhere: Elsewhere, tmp_path: Path) -> None:
    """From any step on, with a validation at each, what a hook keeps is what it would have kept."""
    straight = sgd_shell(Weight(), FAMILIES[name])
    for cut in range(6):
        path = functrain.save(tmp_path / f"{cut}", straight)
        run(straight, [0.5 - cut])
        straight.validated({"total_loss": float(abs(cut - 2))})
        assert elsewhere(validated, path, FAMILIES[name], cut) == repr((applied(straight), straight.state.hooks))


def validated(path: Path, hooks: Any, cut: int) -> str:
    """Load, run a step and a validation, and print what there is."""
    shell = sgd_shell(Weight(7.0), hooks)
    shell.load(path)
    run(shell, [0.5 - cut])
    shell.validated({"total_loss": float(abs(cut - 2))})
    return repr((applied(shell), shell.state.hooks))


def test_e09_saved_while_the_average_is_shown(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """Raw 2, shadow 1.1: the checkpoint holds both, and so does the run, which goes on."""
    shell = sgd_shell(Weight(), EMA(decay=0.9))
    run(shell, [-1.0, -1.0])
    with shell.averaged():
        path = functrain.save(tmp_path / "e09", shell)
    assert applied(shell) == -2.0
    found = elsewhere(loaded, path, EMA(decay=0.9), [])
    assert (found["applied"], found["slots"]["ema"]["shadow"]["w"].item()) == (-2.0, pytest.approx(1.1))
    run(shell, [-1.0])
    found = elsewhere(loaded, path, EMA(decay=0.9), [-1.0])
    assert (found["applied"], found["slots"]["ema"]["shadow"]["w"].item()) == (-3.0, pytest.approx(1.29))


def ended(path: Path) -> str:
    """Load, end the epoch, and return what that raises."""
    shell = sgd_shell(Weight(), skipping())
    shell.load(path)
    try:
        shell.flush()
    except SkipLimitError as error:
        return str(error)
    return ""


def skipping() -> Any:
    """Return hooks that allow no skip."""
    return Accumulate(every=2) + SkipNonFinite(drop=True, max_consecutive=0)


def test_who_vetoed_last_is_known_at_a_flush(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """A window of which everything was dropped is one skip too many, also where its flush comes after a resume."""
    shell = sgd_shell(Weight(), skipping())
    run(shell, [float("nan")])
    path = functrain.save(tmp_path / "open", shell)
    with pytest.raises(SkipLimitError) as raised:
        shell.flush()
    assert elsewhere(ended, path) == str(raised.value)


def stepped(make: Callable[[Any], Any]) -> Shell:
    """Return a shell with a scheduler that has stepped."""
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    shell = Shell(model, optimizer, [], make(optimizer))
    run(shell, [1.0] * 3)
    return shell


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda made: torch.optim.lr_scheduler.StepLR(made, 2),
    "MultiStepLR": lambda made: torch.optim.lr_scheduler.MultiStepLR(made, [2, 5]),
    "LambdaLR": lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.5**step),
    "OneCycleLR": lambda made: torch.optim.lr_scheduler.OneCycleLR(made, 0.1, total_steps=20),
    "CosineAnnealingLR": lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, 10),
    "ReduceLROnPlateau": torch.optim.lr_scheduler.ReduceLROnPlateau,
    "SequentialLR": lambda made: torch.optim.lr_scheduler.SequentialLR(
        made,
        [torch.optim.lr_scheduler.ConstantLR(made), torch.optim.lr_scheduler.ExponentialLR(made, 0.5)],
        milestones=[2],
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_plain_values_go_on(name: str, tmp_path: Path) -> None:
    """Every rate after a resume is the rate without one."""
    one, other = stepped(SCHEDULERS[name]), stepped(SCHEDULERS[name])
    run(other, [2.0])
    other.load(functrain.save(tmp_path / "one", one))
    for shell in (one, other):
        run(shell, [1.0] * 4)
        shell.validated({"total_loss": 1.0})
    assert applied(one) == applied(other)
    rates = [shell._driver.applier.optimizers.by_key["main"].param_groups[0]["lr"] for shell in (one, other)]
    assert rates[0] == rates[1]


class Factor:
    """A rate that a scheduler keeps as an object."""

    def __init__(self) -> None:
        self.history = [Weight()]

    def __call__(self, step: int) -> float:
        """Return a factor."""
        return 1.0


def test_a_scheduler_that_holds_objects_is_refused(tmp_path: Path) -> None:
    """In a sentence that says where the object is; nothing is written."""
    shell = stepped(lambda made: torch.optim.lr_scheduler.LambdaLR(made, Factor()))
    told = r'schedulers\["main"\]\["lr_lambdas"\]\[0\]\["history"\]\[0\] holds a Weight, which cannot be stored'
    with pytest.raises(ValueError, match=told):
        functrain.save(tmp_path / "one", shell)
    assert list(tmp_path.iterdir()) == []
