"""The limit that a clip applied is published beside the norm that it limited."""

from __future__ import annotations

import math

import pytest
import torch

from functrain import Accumulate, ClipNorm, ClipPercentile, ClipZScore, Hook, named, prioritized, pure
from tests.scalars import Weight, applied, sgd_shell

CLIPS = [ClipNorm(max_norm=1.5), ClipPercentile(percentile=50.0, history=3), ClipZScore(z=0.5, warmup=2)]
SLOPES = (1.0, 1.5, 0.5, 4.0, 9.0, 2.0)


@pytest.mark.parametrize("clip", CLIPS, ids=lambda each: each.name)
def test_what_was_applied_is_the_smaller_of_norm_and_limit(clip: Hook) -> None:
    """Of one weight the gradient that was applied is its own norm, so it tells the limit that held."""
    shell, before, limited = sgd_shell(model := Weight(0.0, torch.float64), clip), 0.0, 0
    for slope in SLOPES:
        with shell.batch():
            shell.update(model(slope))
        found = shell.metrics()
        now = applied(shell)
        assert now - before == pytest.approx(min(found["grad_norm"], found["grad_limit"]), rel=1e-5)
        before, limited = now, limited + (found["grad_limit"] < found["grad_norm"])
    assert limited


@pytest.mark.parametrize("clip", CLIPS, ids=lambda each: each.name)
def test_the_engines_publish_the_same_limit(clip: Hook) -> None:
    """As tensors, without a branch."""
    shell, (init, step, _) = sgd_shell(model := Weight(), clip), pure.train_step(loss_of, pure.sgd(1.0), clip)
    state = init({"w": torch.zeros(())})
    for slope in SLOPES:
        state = step(state, torch.tensor(slope))
        with shell.batch():
            shell.update(model(slope))
        torch.testing.assert_close(state.metrics["grad_limit"], shell.state.metrics["grad_limit"], equal_nan=True)


def loss_of(params: dict[str, torch.Tensor], buffers: object, batch: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradient is the batch."""
    return (params["w"] * batch).sum()


def test_norm_and_limit_are_of_the_same_hook() -> None:
    """The first of several measures what no other has clipped."""
    second = prioritized(31, named("second", ClipNorm(max_norm=0.5)))
    shell = sgd_shell(model := Weight(), [ClipNorm(max_norm=2.0), second])
    with shell.batch():
        shell.update(model(5.0))
    found = shell.metrics()
    assert (found["grad_norm"], found["grad_limit"]) == (5.0, 2.0)
    assert applied(shell) == pytest.approx(0.5)


def test_inside_a_window_there_is_no_limit() -> None:
    """Nothing was clipped, and of the window before nothing is left."""
    shell, seen = sgd_shell(model := Weight(), [Accumulate(every=2), ClipNorm(max_norm=2.0)]), []
    for slope in (1.0, 3.0, 1.0):
        with shell.batch():
            shell.update(model(slope))
        seen.append(shell.metrics()["grad_limit"])
    assert [math.isnan(each) for each in seen] == [True, False, True]
