"""The seed of a shell: what hooks draw from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD

from functrain import Shell
from tests.scalars import Weight


def shell_of(**options: Any) -> Shell:
    """Return a shell without hooks."""
    model = Weight()
    return Shell(model, SGD(model.parameters(), lr=0.1), [], **options)


@pytest.mark.parametrize(("options", "seed"), [({}, 0), ({"seed": 7}, 7), ({"seed": -(2**63)}, -(2**63))])
def test_it_is_what_a_state_draws_from(options: dict[str, Any], seed: int) -> None:
    """``state.rng`` holds it, as the state of ``pure.train_step(...).init(params, seed=...)`` does; by default 0."""
    rng = shell_of(**options).state.rng
    assert torch.equal(rng, torch.tensor(seed))
    assert rng.dtype is torch.int64


def test_a_restored_run_keeps_its_own() -> None:
    """A shell that was made with another seed goes on with that of the run that it loads."""
    later = shell_of(seed=1)
    later.load_state_dict(shell_of(seed=7).state_dict())
    assert int(later.state.rng) == 7


@pytest.mark.parametrize("seed", [None, "7", 7.0, True, 2**63])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    """At once, with what was given."""
    with pytest.raises(TypeError, match="seed must be an int of 64 bits, got"):
        shell_of(seed=seed)
