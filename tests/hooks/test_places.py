"""Where numbers go that meet a tensor: to its device. The device "meta" stands for one that is not the default."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from functrain._foreach import lerped, scaled
from functrain._gradients import _on_device
from functrain._select import beside, maximum, minimum, wide
from functrain.hooks.best import _copies
from functrain.hooks.skip import _beside

ELSEWHERE = torch.device("meta")


def elsewhere(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor on another device."""
    return torch.empty(shape, dtype=dtype, device=ELSEWHERE)


@pytest.mark.parametrize(
    ("found", "dtype"),
    [
        (lambda: wide(1.0, elsewhere()), torch.float64),
        (lambda: wide(1, elsewhere()), torch.int64),
        (lambda: beside(torch.tensor(0.1, dtype=torch.float64), elsewhere(1)), torch.float32),
        (lambda: maximum(1.0, elsewhere()), torch.float32),
        (lambda: minimum(elsewhere(), 1.0), torch.float32),
        (lambda: lerped(elsewhere(2), torch.ones(2, dtype=torch.float64), 0.5), torch.float32),
        (lambda: scaled(elsewhere(2), torch.tensor(0.5, dtype=torch.float64)), torch.float32),
        (lambda: _on_device(1.0, elsewhere()), torch.float32),
        (lambda: _on_device(torch.tensor(1.0, dtype=torch.float64), elsewhere()), torch.float32),
        (lambda: _beside(torch.tensor(True), elsewhere()), torch.bool),
        (lambda: _copies({"w": elsewhere(1)}, {"w": torch.ones(1).double()})()["w"], torch.float32),
    ],
    ids=["float", "int", "beside", "maximum", "minimum", "lerp", "scaled", "number", "limit", "flag", "copy"],
)
def test_it_goes_where_the_other_is(found: Any, dtype: torch.dtype) -> None:
    """The result is on the device of what it meets, in the dtype that it must have there."""
    value = found()
    assert value.device == ELSEWHERE
    assert value.dtype is dtype
