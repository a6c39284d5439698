"""What a shell must not keep alive."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from functrain import EMA, Accumulate, ClipNorm, SkipNonFinite
from tests.scalars import sgd_shell


def test_gradients_of_the_last_step_are_freed_before_the_forward() -> None:
    """Clearing gradients at BEFORE_BATCH frees them: the shell holds no second copy during the forward."""
    model = nn.Linear(2, 1)
    shell = sgd_shell(model, [Accumulate(every=1), ClipNorm(max_norm=1.0), SkipNonFinite(), EMA()])
    with shell.batch():
        shell.update(model(torch.ones(1, 2)).sum())
    grad = weakref.ref(model.weight.grad)
    assert grad() is not None
    with shell.batch():
        assert grad() is None
        shell.update(model(torch.ones(1, 2)).sum())


def test_the_graph_is_freed_with_the_backward() -> None:
    """Neither loss in the state carries a graph once the backward has run."""
    model = nn.Linear(2, 1)
    shell = sgd_shell(model, SkipNonFinite())
    with shell.batch():
        shell.update(model(torch.ones(1, 2)).sum())
    assert shell.state.loss.grad_fn is None
    assert shell.state.raw_loss.grad_fn is None
