"""Averages that another library stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functrain import EMA, FrozenMap
from functrain.hooks.ema_layout import with_stored

HOOK = EMA(decay=0.5)
SETTINGS = {"model_key": "main", "decay": 0.5, "update_every": 1, "start_step": 0, "use_buffers": HOOK.use_buffers}


def slot() -> Any:
    """Return a slot with one average and one buffer, in half precision."""
    return FrozenMap(
        {
            "shadow": {"w": torch.zeros(2, dtype=torch.float16)},
            "buffers": {"mean": torch.zeros(1)},
            "n_averaged": 3,
            "num_updates": 5,
        }
    )


def average(**other: Any) -> dict[str, Any]:
    """Return the state dict of an averaged model."""
    return {"n_averaged": torch.tensor(7), "module.w": torch.ones(2), "module.mean": torch.full((1,), 2.0), **other}


@given(st.sets(st.sampled_from(sorted(SETTINGS))), st.none() | st.integers(0, 9))
def test_a_stored_average_is_taken_whole(settings: set[str], updates: int | None) -> None:
    """Tensors come as copies in the dtypes of the slot, counts as stored; settings need not be stored."""
    stored = {"averaged_model_state": average(), **{name: SETTINGS[name] for name in settings}}
    found = with_stored(HOOK, slot(), stored if updates is None else {**stored, "num_updates": torch.tensor(updates)})
    assert (found["n_averaged"], found["num_updates"]) == (7, 5 if updates is None else updates)
    assert found["shadow"]["w"].dtype is torch.float16
    assert (found["shadow"]["w"].tolist(), found["buffers"]["mean"].tolist()) == ([1.0, 1.0], [2.0])
    assert found["buffers"]["mean"].data_ptr() != stored["averaged_model_state"]["module.mean"].data_ptr()


def test_without_an_average_the_next_update_copies() -> None:
    """The count of averaged models goes to 0 and everything else stays."""
    before = slot()
    found = with_stored(HOOK, before, {"num_updates": 2})
    assert (found["n_averaged"], found["num_updates"]) == (0, 2)
    assert found["shadow"] is before["shadow"]
    assert found["buffers"] is before["buffers"]


@pytest.mark.parametrize(
    ("name", "other"), [("model_key", "x"), ("decay", 0.1), ("update_every", 2), ("start_step", 9)]
)
def test_another_setting_is_refused(name: str, other: Any) -> None:
    """The message names the setting and both values."""
    with pytest.raises(ValueError, match=f"'ema': {name}={other!r} in the checkpoint and {name}={SETTINGS[name]!r} in"):
        with_stored(HOOK, slot(), {name: other})


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"decai": 0.5}, r"'ema' has keys that nobody knows: \['decai'\]"),
        ({"averaged_model_state": average(**{"module.v": torch.ones(1)})}, r"on one side only: \['v'\]"),
        ({"averaged_model_state": {"n_averaged": 1, "module.w": torch.ones(2)}}, r"on one side only: \['mean'\]"),
    ],
    ids=["key", "more", "less"],
)
def test_what_nobody_knows_is_refused(stored: dict[str, Any], message: str) -> None:
    """A key or tensor that is unknown, or one that is missing, is named."""
    with pytest.raises(KeyError, match=message):
        with_stored(HOOK, slot(), stored)
