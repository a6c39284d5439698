"""Averages under inference mode, and of models that share a part."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from functrain import EMA, Accumulate, Shell
from tests.scalars import Weight, applied, run, sgd_shell


def averaging() -> Shell:
    """Return a shell in mid-window whose average has been updated."""
    shell = sgd_shell(Weight(), [Accumulate(every=2), EMA(decay=0.5)])
    run(shell, [1.0, 1.0, 1.0])
    return shell


INSIDE: dict[str, Callable[[Shell], object]] = {
    "averaged_module": lambda shell: shell.averaged_module(),
    "restore": lambda shell: shell.restore(shell.snapshot()),
    "load_state_dict": lambda shell: shell.load_state_dict(shell.state_dict()),
}


@pytest.mark.parametrize("call", INSIDE)
def test_nothing_made_under_inference_mode_stays_an_inference_tensor(call: str) -> None:
    """An evaluation under ``inference_mode`` may ask for the average, or go back; training and averages go on."""
    shell = averaging()
    with torch.inference_mode():
        INSIDE[call](shell)
        assert not torch.is_grad_enabled()
    run(shell, [3.0])
    assert (applied(shell), shell.averaged_module().w.item()) == (3.0, -2.0)


def test_a_shell_made_under_inference_mode_trains() -> None:
    """Its slots are ordinary tensors."""
    model = Weight()
    with torch.inference_mode():
        shell = sgd_shell(model, EMA(decay=0.5))
    run(shell, [1.0, 1.0])
    assert shell.averaged_module().w.item() == -1.5


class Sharing(nn.Module):
    """A model around a part that another one holds, too."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, slope: float) -> Tensor:
        """Return a loss of the given slope."""
        return self.trunk(slope)


class Counted(Weight):
    """A weight with a running buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, slope: float) -> Tensor:
        """Return a loss of the given slope, and count."""
        self.seen += 1
        return super().forward(slope)


def sharing() -> tuple[Shell, Counted]:
    """Return two models with one trunk, averaged at two speeds: raw -2, averages -1.5 and -1.25; 2, 1.5 and 1.25."""
    trunk = Counted()
    models = {"a": Sharing(trunk), "b": Sharing(trunk)}
    shell = Shell(
        models, SGD(trunk.parameters(), lr=1.0), [EMA(model_key="a", decay=0.5), EMA(model_key="b", decay=0.75)]
    )
    for _ in range(2):
        with shell.batch():
            shell.update(models["a"](1.0))
    return shell, trunk


def held(trunk: Counted) -> tuple[float, float]:
    """Return what the trunk holds."""
    return trunk.w.item(), trunk.seen.item()


@pytest.mark.parametrize("first_out", ["ema_a", "ema_b"])
def test_averages_of_a_shared_part_leave_the_raw_values(first_out: str) -> None:
    """In whatever order the two are left; the one still shown is shown again."""
    shell, trunk = sharing()
    shown = {name: shell.averaged(name) for name in ("ema_a", "ema_b")}
    for each in shown.values():
        each.__enter__()
    assert held(trunk) == (-1.25, 1.25)
    shown.pop(first_out).__exit__(None, None, None)
    assert held(trunk) == ((-1.25, 1.25) if first_out == "ema_a" else (-1.5, 1.5))
    shown.popitem()[1].__exit__(None, None, None)
    assert held(trunk) == (-2.0, 2.0)


@pytest.mark.parametrize("names", [("ema_a",), ("ema_b",), ("ema_a", "ema_b")])
def test_a_checkpoint_inside_an_average_of_a_shared_part_is_raw(names: tuple[str, ...]) -> None:
    """Under both keys, whichever average is shown."""
    shell, _ = sharing()
    shown = [shell.averaged(name) for name in names]
    for each in shown:
        each.__enter__()
    stored = shell.state_dict()["state"]
    for each in reversed(shown):
        each.__exit__(None, None, None)
    assert [stored["params"][key]["trunk.w"].item() for key in "ab"] == [-2.0, -2.0]
    assert [stored["buffers"][key]["trunk.seen"].item() for key in "ab"] == [2.0, 2.0]
