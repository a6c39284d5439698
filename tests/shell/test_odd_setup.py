"""Schedulers that could not drive a step, and losses that have no direction: said before anything is done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from functrain import EMA, Shell, SkipSpikes
from tests.scalars import Weight, run


@pytest.mark.parametrize("scheduler", ["StepLR", 3, StepLR])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"main": x}])
def test_what_is_no_scheduler_is_refused_at_setup(scheduler: Any, wrap: Any) -> None:
    """Not at the first step, when the optimizer has already moved."""
    model = Weight()
    with pytest.raises(TypeError, match="the scheduler of optimizer 'main' must have a step"):
        Shell(model, SGD(model.parameters()), [], wrap(scheduler))


def test_a_scheduler_of_another_optimizer_is_refused_at_setup() -> None:
    """Its learning rates would reach nobody: an optimizer that was made anew, say."""
    model = Weight()
    scheduler = StepLR(SGD(model.parameters(), lr=1.0), 1)
    with pytest.raises(ValueError, match="the scheduler of optimizer 'main' drives an optimizer that is not"):
        Shell(model, SGD(model.parameters(), lr=1.0), [], scheduler)


class Around(SGD):
    """An optimizer around another one, whose groups it shows."""

    def __init__(self, inner: SGD) -> None:
        super().__init__(inner.param_groups[0]["params"], lr=1.0)
        self.param_groups = inner.param_groups


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_scheduler_of_a_wrapped_optimizer_drives_the_shared_groups() -> None:
    """What counts is whose groups it writes."""
    inner = SGD((model := Weight()).parameters(), lr=1.0)
    shell = Shell(model, Around(inner), [], StepLR(inner, 1, gamma=0.5))
    run(shell, [1.0, 1.0])
    assert model.w.item() == -1.5


def test_integer_keys_serve_models_optimizers_and_schedulers_alike() -> None:
    """All three name their members by ``str(key)``."""
    optimizer = SGD((model := Weight()).parameters(), lr=1.0)
    shell = Shell({0: model}, {0: optimizer}, [], {0: StepLR(optimizer, 1, gamma=0.5)})
    with shell.batch():
        shell.update(model(1.0))
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_complex_loss_is_refused_before_any_hook_sees_it() -> None:
    """It has no direction of descent; a hook would quietly judge its real part."""
    shell = Shell(model := Weight(), SGD(model.parameters(), lr=1.0), SkipSpikes())
    with shell.batch(), pytest.raises(ValueError, match="complex loss"):
        shell.update(model(1.0) * 1j)
    assert model.w.item() == 0.0


def test_a_buffer_that_appears_later_does_not_break_the_averaged_module() -> None:
    """A mask that the first forward makes: the module takes it from the model."""

    class Masked(Weight):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", None, persistent=False)

        def forward(self, slope: Any) -> torch.Tensor:
            """Make the mask where there is none."""
            if self.mask is None:
                self.mask = torch.ones(1)
            return super().forward(slope)

    shell = Shell(model := Masked(), SGD(model.parameters(), lr=1.0), EMA(decay=0.5))
    run(shell, [1.0, 1.0])
    made = shell.averaged_module()
    assert (made.w.item(), made.mask.item()) == (-1.5, 1.0)
