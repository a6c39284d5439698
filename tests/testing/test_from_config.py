"""from_config: hooks drawn from what their classes declare."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument, NoSuchExample
from pydantic import BaseModel, Field, model_validator

from functrain import (
    EMA,
    Accumulate,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    Hook,
    MixedPrecision,
    SkipNonFinite,
    SkipSpikes,
)
from functrain.testing import from_config

LOOKING = settings(max_examples=4000, database=None, suppress_health_check=list(HealthCheck))
KINDS: dict[type[Hook], dict[str, Any]] = {
    EMA: {"model_key": "main"},
    Accumulate: {},
    ClipAdaptive: {},
    ClipNorm: {},
    ClipPercentile: {},
    ClipValue: {},
    ClipZScore: {},
    MixedPrecision: {"precision": "bf16"},
    SkipNonFinite: {},
    SkipSpikes: {},
}


class Colour(Enum):
    """Some members."""

    RED = 1
    BLUE = 2


class Inner(BaseModel):
    """A nested model."""

    share: Annotated[float, Field(gt=0, lt=1)]


class Rich(Hook):
    """A hook with a field of every kind."""

    count: Annotated[int, Field(ge=2, lt=5)]
    even: Annotated[int, Field(multiple_of=4, gt=0, le=12)]
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    limit: Annotated[float, Field(ge=0)] = 1.0
    bounded: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    mode: Literal["on", "off"] = "on"
    colour: Colour = Colour.RED
    maybe: Annotated[int, Field(ge=1)] | None = None
    inner: Inner = Inner(share=0.5)
    pair: tuple[int, bool] = (0, True)
    word: Annotated[str, Field(min_length=1, max_length=3)] = "a"
    listed: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()
    weigh: Callable[[Any], Any] | None = None


class Ordered(Hook):
    """A hook whose fields must agree."""

    low: Annotated[int, Field(ge=0, le=9)] = 0
    high: Annotated[int, Field(ge=0, le=9)] = 9

    @model_validator(mode="after")
    def _agree(self) -> Ordered:
        if self.low > self.high:
            msg = "low is above high"
            raise ValueError(msg)
        return self


@given(st.data())
def test_what_is_drawn_is_valid_and_within_its_bounds(data: st.DataObject) -> None:
    """Pydantic has accepted it; open ends stay near."""
    drawn = data.draw(from_config(Rich))
    assert drawn.count in (2, 3, 4)
    assert drawn.even in (4, 8, 12)
    assert 0 < drawn.share <= 1
    assert math.isfinite(drawn.bounded)
    assert drawn.maybe is None or 1 <= drawn.maybe < 20
    assert 1 <= len(drawn.word) <= 3
    assert all(0 <= each <= 1 for each in drawn.listed)
    assert drawn.weigh is None
    assert drawn.name == "rich"


@pytest.mark.parametrize(
    "wanted",
    [
        lambda rich: rich.count == 4,
        lambda rich: rich.even == 12,
        lambda rich: rich.share == 1.0,
        lambda rich: rich.share == 0.25,
        lambda rich: rich.limit == math.inf,
        lambda rich: rich.mode == "off",
        lambda rich: rich.colour is Colour.BLUE,
        lambda rich: rich.maybe is None,
        lambda rich: rich.maybe is not None,
        lambda rich: rich.inner.share != 0.5,
        lambda rich: rich.pair != (0, True),
        lambda rich: len(rich.listed) > 1,
    ],
)
def test_everything_allowed_is_drawn_some_time(wanted: Callable[[Any], bool]) -> None:
    """Bounds, defaults, members, nested models and containers are reached."""
    find(from_config(Rich), wanted, settings=LOOKING)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_hook_of_the_library_can_be_drawn(kind: type[Hook]) -> None:
    """With more than one configuration."""
    fixed = KINDS[kind]
    default = find(from_config(kind, **fixed), lambda _: True, settings=LOOKING)
    other = find(from_config(kind, **fixed), lambda hook: hook != default, settings=LOOKING)
    assert type(other) is kind


@given(from_config(Ordered))
def test_what_the_class_refuses_as_a_whole_is_not_drawn(drawn: Ordered) -> None:
    """A validator over several fields filters."""
    assert drawn.low <= drawn.high


@given(from_config(EMA, decay=st.sampled_from([0.5, 0.9]), update_every=2, name="slow", model_key="main"))
def test_fields_can_be_given(drawn: EMA) -> None:
    """As a value or as a strategy; what a hook says about itself, too."""
    assert drawn.decay in (0.5, 0.9)
    assert (drawn.update_every, drawn.name) == (2, "slow")


def test_a_field_that_cannot_be_drawn_says_what_to_write() -> None:
    """With the class, the field, its type and the reason."""
    with pytest.raises(InvalidArgument, match=r"MixedPrecision.precision cannot be drawn from .*precision=strategy"):
        from_config(MixedPrecision)


@pytest.mark.parametrize(
    ("arguments", "fields", "message"),
    [
        ((dict,), {}, "a class of hooks"),
        ((EMA(),), {}, "a class of hooks"),
        ((EMA,), {"d": 1}, "no field d"),
    ],
)
def test_mistakes_are_told_at_once(arguments: Any, fields: dict[str, Any], message: str) -> None:
    """Before anything is drawn."""
    with pytest.raises(InvalidArgument, match=message):
        from_config(*arguments, **fields)


def test_contract_fields_keep_their_defaults() -> None:
    """Priority, stages and the like are drawn only if asked for."""
    with pytest.raises(NoSuchExample):
        find(from_config(ClipNorm), lambda hook: hook.priority != 30, settings=LOOKING)


def test_it_prints_as_it_was_written() -> None:
    """The repr is the call."""
    assert repr(from_config(EMA, decay=0.5)) == "from_config(EMA, decay=0.5)"
