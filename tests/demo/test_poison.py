import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from functrain.demo.poison import Poisoned, RunTooShortError, broken_pixel, poison_plan, wrong_labels


def batch(number: int = 0) -> tuple[Tensor, Tensor]:
    """Return a batch that can be told from others."""
    return torch.full((4, 1, 8, 8), float(number)), torch.arange(4)


def test_a_broken_pixel_is_one_nan() -> None:
    """One pixel is NaN, the labels and the batch that came in are as before."""
    clean = batch()
    images, labels = broken_pixel(clean)
    assert images.isnan().sum() == 1
    assert labels.equal(clean[1])
    assert not clean[0].isnan().any()


def test_wrong_labels_are_all_wrong() -> None:
    """No label stays what it was, none leaves the ten classes, and the images are as before."""
    images, _ = batch()
    shown, labels = wrong_labels((images, torch.arange(10)))
    assert (labels != torch.arange(10)).all()
    assert labels.sort().values.equal(torch.arange(10))
    assert shown.equal(images)


def test_only_the_planned_batches_are_poisoned() -> None:
    """Batches are counted over the whole run, so that a plan can reach any epoch."""
    batches = Poisoned([batch(0), batch(1)], {3: broken_pixel})
    spoiled = [[bool(images.isnan().any()) for images, _ in batches] for _ in range(2)]
    assert spoiled == [[False, False], [False, True]]
    assert len(batches) == 2


@given(batches=st.integers(1, 60), epochs=st.integers(1, 5), accumulate=st.integers(1, 70))
def test_a_plan_spoils_three_windows_or_refuses(batches: int, epochs: int, accumulate: int) -> None:
    """Whatever the options: one broken micro-batch, a window of wrong labels, a broken window."""
    if epochs * -(-batches // accumulate) < 10:
        with pytest.raises(RunTooShortError, match="needs 10"):
            poison_plan(batches, epochs, accumulate)
        return
    plan = poison_plan(batches, epochs, accumulate)
    wrong = [number for number, poison in plan.items() if poison is wrong_labels]
    first, *broken = [number for number, poison in plan.items() if poison is broken_pixel]
    assert 1 <= len(wrong) <= accumulate
    assert 1 <= len(broken) <= accumulate
    assert 0 < first < min(wrong) <= max(wrong) < min(broken) <= max(broken) < batches * epochs
