"""What a shell holds is freed with it, without waiting for the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Generator

import pytest
import torch
from torch import nn

from functrain import EMA, Accumulate, ClipNorm, MixedPrecision, Shell, SkipNonFinite, fit

Use = Callable[[Shell, nn.Module], object]


def stepped(shell: Shell, model: nn.Module) -> None:
    """Train two steps."""
    for _ in range(4):
        with shell.batch():
            shell.update(model(torch.ones(2, 4)).square().mean())


def failed(shell: Shell, model: nn.Module) -> None:
    """Raise inside a batch, and before it in one that is refused."""
    with shell.batch(), pytest.raises(RuntimeError, match="inside another"), shell.batch():
        pass
    with pytest.raises(ZeroDivisionError), shell.batch():
        1 / 0  # noqa: B018 - the error is what is wanted


def averaged(shell: Shell, model: nn.Module) -> None:
    """Look at the averages in both ways."""
    stepped(shell, model)
    with shell.averaged():
        model(torch.ones(2, 4))
    shell.averaged_module()


def fitted(shell: Shell, model: nn.Module) -> None:
    """Run an epoch."""
    fit(shell, [torch.ones(2, 4)] * 4, lambda model, batch: model(batch).square().mean(), epochs=1, progress=False)


def restored(shell: Shell, model: nn.Module) -> None:
    """Go there and back again."""
    taken, stored = shell.snapshot(), shell.state_dict()
    stepped(shell, model)
    shell.restore(taken)
    shell.load_state_dict(stored)


@pytest.fixture(autouse=True)
def uncollected() -> Generator[None]:
    """No collection runs during the test; what torch builds at its first step is not counted."""
    model = nn.Linear(4, 1)
    stepped(Shell(model, torch.optim.AdamW(model.parameters()), []), model)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("use", [stepped, failed, averaged, fitted, restored])
@pytest.mark.parametrize("precision", [None, "bf16"])
def test_a_shell_and_its_model_go_with_their_last_name(use: Use, precision: str | None) -> None:
    """Counting references frees them: a notebook that builds a second model does not hold two on the device."""
    hooks = [Accumulate(every=2), ClipNorm(max_norm=1.0), SkipNonFinite(), EMA(decay=0.9)]
    amp = [] if precision is None else [MixedPrecision(precision=precision)]
    model = nn.Linear(4, 1)
    shell = Shell(model, torch.optim.AdamW(model.parameters()), [*amp, *hooks])
    use(shell, model)
    seen = weakref.ref(model), weakref.ref(shell)
    del model, shell
    assert [each() for each in seen] == [None, None]
