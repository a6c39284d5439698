"""The rows "EMA" of the contract: saving and loading."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from functrain import EMA, Shell
from tests.contract.toys import scalar, shell_of, train


def run(**settings: Any) -> tuple[Shell, torch.nn.Linear]:
    """Train two steps under an average of decay .5."""
    train(shell := shell_of(model := scalar(), EMA(**{"decay": 0.5, **settings})), model, 1.0, 1.0)
    return shell, model


def test_state_dict_hands_out_copies() -> None:
    """What `state_dict` hands out shares no memory with the live average."""
    shell, model = run()
    saved = shell.state_dict()
    before = copy.deepcopy(saved)
    train(shell, model, 5.0)
    assert str(saved) == str(before)


def test_counters_and_averages_are_restored() -> None:
    """`n_averaged`, `num_updates` and the average come back, and averaging goes on where it was."""
    (first, model), (second, other) = run(), run(num_updates=0)
    second = shell_of(other := scalar(), EMA(decay=0.5))
    second.load_state_dict(first.state_dict())
    for shell, trained in ((first, model), (second, other)):
        train(shell, trained, 1.0)
    slots = [shell.state.hooks["ema"] for shell in (first, second)]
    assert [(slot["n_averaged"], slot["num_updates"]) for slot in slots] == [(3, 3)] * 2
    assert first.averaged_module("ema").weight.item() == second.averaged_module("ema").weight.item() == -2.25


@pytest.mark.parametrize(
    ("field", "value"), [("decay", 0.9), ("update_every", 2), ("start_step", 1), ("use_buffers", False)]
)
def test_a_conflicting_configuration_is_refused_and_nothing_changes(field: str, value: object) -> None:
    """A stored field that differs from the constructor's is a ValueError with both values, all or nothing."""
    first, _ = run()
    second = shell_of(model := scalar(7.0), EMA(**{"decay": 0.5, field: value}))
    before = str(second.state_dict())
    with pytest.raises(ValueError, match=rf"{field}.*{value}"):
        second.load_state_dict(first.state_dict())
    assert (model.weight.item(), str(second.state_dict())) == (7.0, before)


def test_num_updates_is_no_conflict() -> None:
    """`num_updates` of the constructor is overwritten, not compared."""
    first, _ = run()
    second = shell_of(scalar(), EMA(decay=0.5, num_updates=9))
    second.load_state_dict(first.state_dict())
    assert second.state.hooks["ema"]["num_updates"] == 2
