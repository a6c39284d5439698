"""What an error says, word for word, where other tests only ask for its kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from functrain import FrozenMap, PowerSnapshot, post_hoc_average
from functrain._merging import exact
from functrain._sealed import parsed

ONE = torch.ones(1)


def test_nothing_is_deleted_from_a_mapping() -> None:
    """The error names what somebody wanted to delete."""
    with pytest.raises(AttributeError, match=r"^FrozenMap is immutable; cannot delete '_data'$"):
        del FrozenMap()._data


@pytest.mark.parametrize(
    ("current", "stored", "words"),
    [
        (None, "text", "slot.x: stored str, expected NoneType"),
        ("text", None, "slot.x: stored NoneType, expected str"),
        (ONE, ONE.double(), "slot.x: stored torch.float64, expected torch.float32"),
        (ONE, torch.ones(2), "slot.x: stored a tensor (2,), expected a tensor (1,)"),
        (ONE, [1], "slot.x: stored list, expected a tensor (1,)"),
        (1, "text", "slot.x: stored str, expected int"),
    ],
)
def test_what_was_stored_and_what_was_expected(current: Any, stored: Any, words: str) -> None:
    """Both kinds are named, in this order, with the place."""
    with pytest.raises(ValueError, match=r"^slot\.x") as caught:
        exact(current, stored, "slot.x")
    assert str(caught.value) == words


def test_a_letter_that_is_no_object() -> None:
    """Text that is JSON and no object is refused in these words."""
    with pytest.raises(ValueError, match=r"^it is no object$"):
        parsed("[1]")


def test_snapshots_of_different_tensors() -> None:
    """The two steps are named, the last one second, and what only one of them holds."""
    snapshots = [PowerSnapshot(step, 0.05, {name: ONE}) for step, name in ((1, "w"), (2, "v"), (3, "w"))]
    with pytest.raises(ValueError, match=r"^the snapshots of steps 2 and 3 do not both hold \['v', 'w'\]$"):
        post_hoc_average(snapshots, 0.05)
