"""`shell.averaged()` under interrupts: wherever one strikes, the model holds all of one set of weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import functrain
from functrain import EMA, Shell
from functrain.shell import shown
from tests.scalars import sgd_shell

PACKAGE = str(Path(functrain.__file__).parent)


def trained() -> tuple[Shell, nn.Module]:
    """Return a model with parameters and buffers whose average differs from it, trained under two averages."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    shell = sgd_shell(model, [EMA(decay=0.5, name="fast"), EMA(decay=0.9, name="slow")], lr=0.1)
    for _ in range(3):
        train(shell, model)
    return shell, model


def train(shell: Shell, model: nn.Module) -> None:
    """Run one step."""
    with shell.batch():
        shell.update(model(torch.randn(4, 2)).square().mean())


def held(model: nn.Module) -> dict[str, Any]:
    """Return what a model holds, as plain numbers."""
    return {name: leaf.tolist() for name, leaf in model.state_dict().items()}


@contextmanager
def interrupted(at: int, times: int = 1) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the n-th place at which Python would let a signal in: where a function is entered.

    Only in functrain's own functions, and there within a swap.
    """
    count = [0]

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and _inside(frame):
            count[0] += 1
            if at <= count[0] < at + times:
                raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def _inside(frame: FrameType | None) -> bool:
    """Tell whether a frame belongs to a swap, and is of functrain."""
    if frame is None or not frame.f_code.co_filename.startswith(PACKAGE):
        return False
    while frame is not None:
        if frame.f_code.co_filename == shown.__file__:
            return frame.f_code.co_name not in {"__init__", "__bool__"}
        frame = frame.f_back
    return False


def swap(shell: Shell, names: tuple[str, ...]) -> None:
    """Enter averages one in another, and leave them."""
    if names:
        with shell.averaged(names[0]):
            swap(shell, names[1:])


def is_interrupted(shell: Shell, names: tuple[str, ...], at: int, times: int = 1) -> bool:
    """Swap, and tell whether that was interrupted; what an interrupt leaves hanging goes with its traceback."""
    try:
        with interrupted(at, times):
            swap(shell, names)
    except KeyboardInterrupt:
        return True
    return False


def places(names: tuple[str, ...]) -> int:
    """Count the places at which a swap could be interrupted."""
    with interrupted(0, 0) as count:
        swap(trained()[0], names)
    return count[0]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("names", [("fast",), ("fast", "slow")])
def test_an_interrupt_anywhere_leaves_the_raw_weights(names: tuple[str, ...], times: int) -> None:
    """Entering and leaving are interrupted at every place there is, also several times in a row; training goes on."""
    total = places(names)
    assert total > 30
    shell, model = trained()
    raw = held(model)
    for at in range(1, total + 1):
        assert is_interrupted(shell, names, at, times)
        assert held(model) == raw, at
    with shell.averaged("fast"):
        assert held(model) != raw
    train(shell, model)
    assert held(model) != raw


def test_an_interrupted_swap_keeps_nothing_for_the_next_one() -> None:
    """Raw weights that were copied for an interrupted swap are not those that a later swap brings back."""
    shell, model = trained()
    for at in range(1, places(("fast",)) + 1):
        assert is_interrupted(shell, ("fast",), at)
        train(shell, model)
        raw = held(model)
        swap(shell, ("fast",))
        assert held(model) == raw, at
