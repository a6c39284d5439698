"""What a program may have set globally around a shell: default dtype and device, gradients off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from functrain import (
    EMA,
    Accumulate,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    MedianDeviation,
    MixedPrecision,
    MovingMean,
    Shell,
    SkipNonFinite,
    SkipSpikes,
    TrainState,
)
from functrain._gradients import total_norm
from tests.scalars import Weight, applied, sgd_shell


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Put the defaults back; the weights of all tests are the same, whatever ran before."""
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


def everything(model: nn.Module, precision: str, *, strict: bool) -> Shell:
    """Return a shell with every hook of the library."""
    hooks: list[Any] = [Accumulate(every=2), MixedPrecision(precision=precision), ClipNorm(max_norm=1.0)]
    hooks += [
        ClipValue(clip_value=1.0),
        ClipAdaptive(),
        ClipPercentile(),
        ClipZScore(),
        SkipNonFinite(),
        EMA(decay=0.5),
    ]
    hooks += [SkipSpikes(by=MovingMean(ratio=9.0, alpha=0.1)), SkipSpikes(name="by_norm", of="grad_norm")]
    hooks += [SkipSpikes(name="median", by=MedianDeviation(deviations=9.0, history=4, warmup=2))]
    return sgd_shell(model, hooks, lr=0.1, strict=strict)


def trained(shell: Shell, model: nn.Module, inputs: torch.Tensor) -> int:
    """Train a window and a half, save, load, look at the average; return the steps."""
    for _ in range(3):
        with shell.batch():
            shell.update(model(inputs).float().square().mean())
    shell.flush()
    shell.load_state_dict(shell.state_dict())
    shell.averaged_module()
    return shell.state.clock.step


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_any_default_dtype(dtype: torch.dtype, strict: bool) -> None:
    """Metrics are float32 from the start, whatever ``torch.set_default_dtype`` says."""
    torch.set_default_dtype(dtype)
    model = nn.Linear(2, 1)
    shell = everything(model, "fp32", strict=strict)
    assert shell.state.metrics["grad_norm"].dtype is torch.float32
    assert total_norm(TrainState()).dtype is torch.float32
    assert trained(shell, model, torch.ones(2, 2)) == 2


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("strict", [False, True])
def test_any_default_device(precision: str, strict: bool) -> None:
    """Nothing the library makes lands on the default device of somebody else."""
    model, inputs = nn.Linear(2, 1), torch.ones(2, 2)
    torch.set_default_device("meta")
    assert trained(everything(model, precision, strict=strict), model, inputs) == 2


def test_gradients_switched_off_around_the_update() -> None:
    """``torch.no_grad`` around ``update`` does not cut the loss off from its graph, divided or scaled."""
    shell = sgd_shell(model := Weight(), [Accumulate(every=2), MixedPrecision(precision="fp16", init_scale=4.0)])
    for slope in (1.0, 3.0):
        with shell.batch():
            loss = model(slope)
            with torch.no_grad():
                shell.update(loss)
    assert applied(shell) == 2.0
