"""Where numbers go that meet a tensor: to its device. The device "meta" stands for one that is not the default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from functrain import BestAverage, FrozenMap, TrainState
from functrain._foreach import lerped, norms, norms_one_by_one, scaled
from functrain._gradients import _on_device
from functrain._merging import converted
from functrain._pairs import Pairs
from functrain._select import beside, maximum, minimum, wide
from functrain.hooks.best import _copies
from functrain.hooks.ema_layout import _like
from functrain.hooks.shadow import led, shadow_of
from functrain.hooks.skip import _beside
from functrain.hooks.spikes import _norm
from functrain.hooks.visits import Visits

ELSEWHERE = torch.device("meta")


def elsewhere(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor on another device."""
    return torch.empty(shape, dtype=dtype, device=ELSEWHERE)


def published_elsewhere() -> TrainState:
    """Return a state of gradients here, whose norm was published there."""
    weights = {"main": {"w": torch.ones(2, dtype=torch.float64)}}
    return TrainState(params=weights, grads=weights, metrics={"grad_norm": elsewhere()})


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
        (lambda: _like(FrozenMap({"w": elsewhere(1)}), {"w": torch.ones(1).double()})["w"], torch.float32),
        (lambda: led(FrozenMap({"w": elsewhere(1)}), FrozenMap({"w": torch.ones(1).double()}))["w"], torch.float32),
        (lambda: shadow_of(FrozenMap({"w": torch.ones(1)}), None, "meta")["w"], torch.float32),
        (lambda: converted(elsewhere(), 1.0, "slot"), torch.float32),
        (lambda: converted(elsewhere(2), torch.ones(2).double(), "slot"), torch.float32),
        (lambda: BestAverage()._score({"total_loss": torch.tensor(1.0)}, elsewhere().double()), torch.float64),
        (lambda: _norm(published_elsewhere()), torch.float32),
    ],
    ids=[
        *("float", "int", "beside", "maximum", "minimum", "lerp", "scaled", "number", "limit", "flag", "copy"),
        *("stored", "led", "shadow", "converted", "moved", "score", "norm"),
    ],
)
def test_it_goes_where_the_other_is(found: Any, dtype: torch.dtype) -> None:
    """The result is on the device of what it meets, in the dtype that it must have there."""
    value = found()
    assert value.device == ELSEWHERE
    assert value.dtype is dtype


@pytest.mark.parametrize("function", [norms, norms_one_by_one])
def test_norms_gather_where_the_first_is(function: Any) -> None:
    """One device for all of them, that of the first tensor."""
    found = function([elsewhere(2), torch.ones(2)], 2.0)
    assert [each.device for each in found] == [ELSEWHERE, ELSEWHERE]


def test_sources_of_another_place_are_staged() -> None:
    """The buffer lies where the targets are, not where their sources come from."""
    pairs = Pairs([elsewhere(2), elsewhere(3)], [torch.ones(2), torch.ones(3)])
    pairs.lerp_(0.5)
    assert {each.device for _, _, staged in pairs._movers[0]._parts for each in staged} == {ELSEWHERE}


@pytest.mark.parametrize("move", [Visits.copy_, lambda visits: visits.lerp_(0.5)], ids=["copy", "lerp"])
def test_a_shadow_visits_the_weights_elsewhere(move: Any) -> None:
    """A shadow here meets weights of another device there, and what comes back is written into it."""
    met: list[torch.device] = []

    def seen(weight: torch.Tensor, shadow: torch.Tensor) -> torch.Tensor:
        met.extend((weight.device, shadow.device))
        return weight

    with FakeTensorMode():
        shadow = torch.empty(2)
        before = shadow._version
        move(Visits([shadow], [torch.empty(2, device="cuda")], seen))
        assert (shadow.device.type, shadow._version) == ("cpu", before + 1)
    assert [each.type for each in met] == ["cuda", "cuda"]


def test_the_best_average_is_kept_where_it_was_asked_for() -> None:
    """On the CPU, or with the model."""
    with FakeTensorMode():
        held = FrozenMap({"w": torch.empty(2, device="cuda")})
        kept = {where: BestAverage(keep_on=where)._placed(held)["w"].device.type for where in ("cpu", "model")}
    assert kept == {"cpu": "cpu", "model": "cuda"}
