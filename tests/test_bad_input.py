"""What is asked of a shell that runs: unknown slots, weights that are none, skips past a limit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    Hook,
    SkipLimitError,
    SkipNonFinite,
)
from tests.ids import plain
from tests.scalars import Weight, applied, sgd_shell, step
from tests.scripted import vetoing

NAN = float("nan")


def test_an_unknown_slot() -> None:
    """KeyError with the key and the sorted ones there are, for slots and for averages."""
    shell = sgd_shell(Weight(), EMA() + ClipNorm(max_norm=1.0))
    with pytest.raises(KeyError, match=r"no slot for a hook named 'emma'; state.hooks has \['clip', 'ema'\]"):
        shell.state.slot("emma")
    for ask in (shell.averaged_module, shell.averaged):
        with pytest.raises(KeyError, match=r"'emma'.*'ema'"), copy.copy(ask)("emma"):  # pyright: ignore[reportGeneralTypeIssues]
            pass


@pytest.mark.parametrize(
    ("weight", "kind", "message"),
    [
        (-1.0, ValueError, "weight must be finite and at least 0, got -1.0"),
        (NAN, ValueError, "weight must be finite and at least 0, got nan"),
        (float("inf"), ValueError, "weight must be finite and at least 0, got inf"),
        (True, TypeError, "weight must be a number, got bool"),
        ("3", TypeError, "weight must be a number, got str"),
        ([3], TypeError, "weight must be a number, got list"),
        (torch.ones(2), TypeError, r"weight must be a number, got a Tensor of shape \(2,\)"),
        (torch.tensor(True), TypeError, "weight must be a number, got a Tensor of shape .* and dtype torch.bool"),
        (torch.tensor(1j), TypeError, "weight must be a number, got a Tensor of shape .* and dtype torch.complex64"),
    ],
    ids=plain,
)
@pytest.mark.parametrize("source", ["update", "hook"])
def test_a_weight_that_is_none(weight: Any, kind: type[Exception], message: str, source: str) -> None:
    """Weights are finite numbers of at least 0, from update or from the hook; the next window is clean."""
    found = [weight]
    hook = Accumulate(every=1, weight=(lambda _: found[0]) if source == "hook" else None)
    shell = sgd_shell(Weight(), hook)
    with pytest.raises(kind, match=message):
        step(shell, 1.0, weight if source == "update" else None)
    assert (applied(shell), shell.state.clock.batch) == (0.0, 0)
    found[0] = 4.0
    step(shell, 3.0, 2.0 if source == "update" else None)
    assert applied(shell) == 3.0


def tokens(_batch: Any) -> Tensor | float:
    """Return the weight of any batch."""
    return 2.0


@pytest.mark.parametrize(
    ("hooks", "weights", "message"),
    [
        ([], [2.0], "weight= needs Accumulate in the pipeline, which divides by the sum of weights"),
        ([Accumulate(every=2, weight=tokens)], [2.0], r"weight= beside Accumulate\(weight=...\): .* one source only"),
        ([Accumulate(every=3)], [2.0, None], "this window was opened with weights; give every micro-batch of it one"),
        (
            [Accumulate(every=3)],
            [None, 2.0],
            "this window was opened without weights; give every micro-batch",
        ),
    ],
)
def test_weights_from_two_sources(hooks: list[Hook], weights: list[Any], message: str) -> None:
    """A window has weights for all of its micro-batches, from one source, or none."""
    shell = sgd_shell(Weight(), hooks)
    *before, last = weights
    for weight in before:
        step(shell, 1.0, weight)
    with pytest.raises(ValueError, match=message):
        step(shell, 1.0, last)


@pytest.mark.parametrize("limit", [0, 2])
def test_skips_past_a_limit(limit: int) -> None:
    """The error names the hook, how many steps in a row were skipped, and since which batch."""
    shell = sgd_shell(Weight(), SkipNonFinite(max_consecutive=limit))
    step(shell, 1.0)
    for _ in range(limit):
        step(shell, NAN)
    with pytest.raises(SkipLimitError) as caught:
        step(shell, NAN)
    assert str(caught.value).startswith(
        f"'finite' skipped again: {limit + 1} optimizer steps in a row were skipped since batch 1, "
        f"and max_consecutive={limit}; the weights are those of step 1."
    )
    assert applied(shell) == 1.0


def test_who_set_no_limit_raises_none() -> None:
    """A veto of a hook without a limit is never past one."""
    shell = sgd_shell(Weight(), vetoing(range(9)) + SkipNonFinite(max_consecutive=0))
    for _ in range(5):
        step(shell, 1.0)
    assert shell.state.clock.consecutive_skips == 5
