"""Cases whose numbers are known by hand, saved to disk and gone on with in another process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import functrain
from functrain import EMA, Accumulate, Hook, Shell, SkipLimitError, SkipNonFinite, Stage, TrainState
from functrain._tree import FrozenMap
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


class Warming(Hook):
    """An average whose decay is (1+n)/(10+n), n being how often it has moved; the first update copies."""

    stages: frozenset[Stage] = frozenset({Stage.AFTER_OPTIMIZER_STEP})

    def init(self, state: TrainState) -> Any:
        """Keep the shadow, how often it moved, and the decay of the last move."""
        return FrozenMap({"shadow": state.params["main"]["w"].clone(), "copied": False, "n": 0, "decay": 0.0})

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Any:
        """Copy first, then move."""
        slot, weight = state.hooks[self.name], state.params["main"]["w"]
        if not slot["copied"]:
            return state.with_slot(self.name, slot | {"shadow": weight.clone(), "copied": True}), True, state.loss
        decay = min((1 + slot["n"]) / (10 + slot["n"]), 0.9999)
        shadow = torch.lerp(slot["shadow"], weight, 1 - decay)
        new = slot | {"shadow": shadow, "n": slot["n"] + 1, "decay": decay}
        return state.with_slot(self.name, new), True, state.loss


def test_e08_the_count_of_a_warm_up(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """The decays .1, .181818 and .25, with a resume between any two of them."""
    for cut, expected in enumerate([0.1, 2 / 11, 0.25], start=1):
        shell = sgd_shell(Weight(), Warming())
        run(shell, [1.0] * cut)
        path = functrain.save(tmp_path / f"e08-{cut}", shell)
        slot = elsewhere(loaded, path, Warming(), [1.0])["slots"]["warming"]
        assert (slot["n"], slot["decay"]) == (cut, pytest.approx(expected))


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
