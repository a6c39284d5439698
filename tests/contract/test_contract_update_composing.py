"""The rows "Update hook" of the contract about composing: families, `+`, and hooks of one class."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.optim import SGD

import functrain
from functrain import EMA, ClipNorm, Hook, fold, named, on
from tests.contract.toys import scalar, shell_of, train


class Early(Hook):
    """The first of a family by priority."""

    priority: int = 5
    exclusive: str | None = "family"


class Late(Hook):
    """The second of a family by priority."""

    exclusive: str | None = "family"


@pytest.mark.parametrize("compose", [fold, lambda a, b: a + b])
def test_exclusive_family_stands_at_most_once(compose: Any) -> None:
    """Two of a family: ValueError that names the key and both types, the first in priority order first."""
    with pytest.raises(ValueError, match=r"'family'.*Early.*Late"):
        compose(Late(), Early())


def test_plus_composes_hooks_and_pipelines_both_ways() -> None:
    """`hook + hook`, `hook + pipeline` and `pipeline + hook` compose as `fold` does."""
    a, b, c = (named(name, Hook()) for name in "abc")
    for composed in (a + b + c, a + (b + c), (a + b) + c, fold(a, b, c)):
        assert [each.name for each in composed] == ["a", "b", "c"]


@pytest.mark.parametrize("other", [1, None, "ema", [EMA()], EMA])
def test_plus_refuses_anything_else(other: object) -> None:
    """`+` with anything else is a TypeError, on either side."""
    with pytest.raises(TypeError):
        Hook() + other
    with pytest.raises(TypeError):
        other + Hook()


def test_any_number_of_one_class_is_told_apart_by_name() -> None:
    """Hooks of one class are told apart by `name=` or `named(...)`, each with a slot of its own."""
    hooks = EMA(decay=0.5) + EMA(decay=0.9, name="slow") + named("slower", EMA(decay=0.99))
    train(shell := shell_of(model := scalar(), hooks), model, 1.0, 1.0)
    found = [shell.averaged_module(name).weight.item() for name in ("ema", "slow", "slower")]
    assert found == pytest.approx([-1.5, -1.1, -1.01])


def test_any_number_of_one_class_also_of_those_that_publish() -> None:
    """Hooks that publish a metric can stand more than once too: a limit for each part of a model."""
    model = nn.ModuleDict({"head": scalar(), "body": scalar()})
    parts = [on(f"{key}.*", ClipNorm(max_norm=limit, name=key)) for key, limit in (("head", 1.0), ("body", 2.0))]
    train(functrain.Shell({"main": model}, SGD(model.parameters(), lr=1.0), parts), model, 4.0)
    assert [model[key].weight.item() for key in ("head", "body")] == pytest.approx([-1.0, -2.0])


def test_an_equal_name_is_refused_with_the_remedy() -> None:
    """Two hooks of one name are a ValueError that proposes `named` (stricter)."""
    with pytest.raises(ValueError, match=r"'ema'.*named\("):
        EMA(decay=0.5) + EMA(decay=0.9)


def test_the_same_instance_twice_is_refused_with_the_remedy() -> None:
    """The same instance twice is a ValueError that proposes `named` (stricter)."""
    average = EMA()
    with pytest.raises(ValueError, match=r"same instance.*named\("):
        average + average
