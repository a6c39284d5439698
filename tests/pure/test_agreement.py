"""L13: the shell and the pure engine agree on any pipeline of library hooks and any batches.

Bitwise, except with Adam: a step of it in float32 may be 2 ulp away, and in float64 1e-12. What is fed back through a
model grows by factors that no count of ulp bounds, so the law speaks of one step from one state: after each event the
engine goes on from the shell's state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from functrain import Accumulate, Hook, SkipNonFinite, when
from functrain._wrapper import innermost
from functrain.hooks import LIBRARY
from functrain.testing.drawn_hooks import library_hooks
from functrain.testing.events import schedules
from functrain.testing.oracles import check_interpreters
from functrain.testing.training import Training
from functrain.testing.twins import Twins

DTYPES = (torch.float32, torch.float64)


def mlp() -> nn.Module:
    """Return a perceptron."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def normed() -> nn.Module:
    """Return a network with BatchNorm in train mode."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


class Scalar(nn.Module):
    """A model with a 0-d parameter, which promotes unlike others."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input times the weight."""
        return self.w * x


def sgd(**options: Any) -> Callable[[Any], Any]:
    """Return SGD."""
    return lambda params: torch.optim.SGD(params, lr=0.05, **options)


def adam(**options: Any) -> Callable[[Any], Any]:
    """Return Adam."""
    return lambda params: torch.optim.Adam(params, lr=0.01, **options)


def adamw(**options: Any) -> Callable[[Any], Any]:
    """Return AdamW."""
    return lambda params: torch.optim.AdamW(params, lr=0.01, **options)


OPTIMIZERS = (
    sgd(),
    sgd(momentum=0.9),
    sgd(momentum=0.9, nesterov=True, weight_decay=0.1),
    sgd(momentum=0.5, dampening=0.1, maximize=True),
    adam(weight_decay=0.1),
    adamw(),
    adamw(amsgrad=True, weight_decay=0.0, betas=(0.5, 0.9)),
)


def batch_of(place: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return a micro-batch."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(place), dtype=dtype)
    return {"x": x, "tokens": place % 3 + 1}


def training(
    model: Callable[[], nn.Module], optimizer: Any, hooks: Any, dtype: torch.dtype = torch.float32
) -> Training:
    """Return a run whose loss is small for small outputs."""
    batches = [batch_of(place, dtype) for place in range(12)]
    return Training(
        lambda: model().to(dtype), lambda module, batch: module(batch["x"]).square().mean(), optimizer, batches, hooks
    )


def of_the_one_model(hook: Hook) -> bool:
    """Take hooks of the model that there is."""
    return getattr(innermost(hook), "model_key", "main") == "main"


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_l13_shell_and_engine_agree(data: st.DataObject) -> None:
    """After every event of any run the two states agree: bitwise with SGD, as close as the law says with Adam."""
    kinds = data.draw(st.lists(st.sampled_from(LIBRARY), max_size=5, unique=True))
    hooks = [data.draw(library_hooks(kind).filter(of_the_one_model)) for kind in kinds]
    model, dtype = data.draw(st.sampled_from([mlp, normed, Scalar])), data.draw(st.sampled_from(DTYPES))
    run = training(model, data.draw(st.sampled_from(OPTIMIZERS)), hooks, dtype)
    check_interpreters(run, data.draw(schedules()))


def test_what_was_cleared_has_not_entered() -> None:
    """Where gradients are cleared in mid-window, nothing of it counts: a dropped boundary then steps in neither."""
    optimizer = sgd(momentum=0.9, weight_decay=0.1)
    sometimes = when(lambda state: state.clock.batch % 2 == 1, Accumulate(every=2))
    run = training(mlp, optimizer, [sometimes, SkipNonFinite(max_consecutive=None)])
    twins = Twins(run)
    for place, event in enumerate(("fine", "fine", "nan", "fine")):
        twins.happen(event, place)
        assert list(twins.differences()) == []
    assert (twins.shell.state.clock.skipped, twins.shell.state.clock.step) == (1, 1)
