"""`shell.averaged()`: the model holds the averaged weights for a while, in its own storage."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from functrain import EMA, Accumulate, FixedLimit, Shell, SkipSpikes, every, on, when
from tests.scalars import Weight, applied, run, sgd_shell, step
from tests.scripted import Planned, pair_applied, pair_shell, step_pair
from tests.shell.records import differences, record


def ready(*more: Any, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Shell, Weight]:
    """Return a shell with raw 2, an average "fast" of 1.5 and an average "slow" of 1.25."""
    hooks = [EMA(decay=0.5, name="fast"), EMA(decay=0.75, name="slow"), *more]
    shell = sgd_shell(model := Weight(0.0, dtype), hooks, **options)
    run(shell, [-1.0, -1.0])
    return shell, model


VALUES = {"fast": 1.5, "slow": 1.25}


@given(names=st.lists(st.sampled_from(["fast", "slow"]), max_size=6), broken=st.booleans())
def test_any_nesting_shows_the_innermost_and_comes_back(names: list[str], broken: bool) -> None:
    """Contexts of two averages nested in any order, also left by an exception: the storage is the model's own."""
    shell, model = ready()
    address = model.w.data_ptr()
    with pytest.raises(Planned) if broken else ExitStack(), ExitStack() as stack:
        for name in names:
            stack.enter_context(shell.averaged(name))
            assert (model.w.item(), model.w.data_ptr()) == (VALUES[name], address)
        if broken:
            raise Planned
    assert (model.w.item(), applied(shell)) == (2.0, -2.0)
    step(shell, -1.0)
    assert (model.w.item(), shell.averaged_module("fast").w.item()) == (3.0, 2.25)


@pytest.mark.parametrize("act", ["update", "batch", "flush", "restore", "load_state_dict"])
def test_nothing_that_writes_weights_is_allowed_inside(act: str) -> None:
    """Training, flushing and restoring inside are refused with the remedy; nothing changes."""
    shell, _ = ready(Accumulate(every=2, partial="flush"))
    step(shell, -1.0)
    taken, saved, before = shell.snapshot(), shell.state_dict(), record(shell)
    acts: dict[str, Any] = {
        "update": lambda: shell.update(torch.ones((), requires_grad=True)),
        "batch": lambda: shell.batch().__enter__(),
        "flush": shell.flush,
        "restore": lambda: shell.restore(taken),
        "load_state_dict": lambda: shell.load_state_dict(saved),
    }
    with shell.averaged("fast"), pytest.raises(RuntimeError, match=r"inside shell\.averaged\(\).*leave that context"):
        acts[act]()
    assert differences(before, record(shell)) == []


def test_an_update_is_refused_inside_an_open_batch_too() -> None:
    """A batch opened before the context cannot be updated in it; after it, it can."""
    shell, model = ready()
    with shell.batch():
        loss = model(-1.0)
        with shell.averaged("fast"), pytest.raises(RuntimeError, match="averaged"):
            shell.update(loss)
        shell.update(loss)
    assert model.w.item() == 3.0


@pytest.mark.parametrize("nested", [("fast",), ("fast", "slow"), ("slow", "fast", "slow")])
def test_what_is_saved_inside_is_raw(nested: tuple[str, ...]) -> None:
    """Snapshot and state dict taken inside, at any depth, are those taken outside."""
    shell, model = ready()
    outside = shell.state_dict()
    with ExitStack() as stack:
        for name in nested:
            stack.enter_context(shell.averaged(name))
        inside, taken = shell.state_dict(), shell.snapshot()
        assert model.w.item() == VALUES[nested[-1]]
    assert str(inside) == str(outside)
    nn.init.constant_(model.w, 9.0)
    shell.restore(taken)
    assert model.w.item() == 2.0


def test_gradients_and_optimizer_are_left_alone() -> None:
    """An open window goes on after an evaluation in the middle of it."""
    shell, model = ready(Accumulate(every=2))
    grad = model.w.grad
    step(shell, -1.0)
    grad = model.w.grad
    with shell.averaged("fast"):
        assert model.w.grad is grad
    step(shell, -3.0)
    assert model.w.item() == 3.0


class Counting(nn.Module):
    """A model whose forward writes one buffer in place and replaces another."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.0))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, slope: float) -> Tensor:
        """Return a loss whose gradient is the slope, and count."""
        self.calls += 1
        self.seen = self.seen + 1.0
        return self.w * slope


@pytest.mark.parametrize("error", [None, Planned])
def test_buffers_come_back_whatever_a_forward_inside_does(error: Any) -> None:
    """Averaged buffers are shown inside; what a forward inside wrote or replaced is undone."""
    shell = sgd_shell(model := Counting(), EMA(decay=0.5))
    run(shell, [-1.0, -1.0])
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(error) if error else ExitStack())
        stack.enter_context(shell.averaged())
        assert (model.seen.item(), model.calls.item()) == (1.5, 2)
        model(1.0)
        if error:
            raise error
    assert (model.w.item(), model.seen.item(), model.calls.item()) == (2.0, 2.0, 2)
    step(shell, -1.0)
    assert shell.averaged_module().seen.item() == 2.25


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_come_back_bitwise(dtype: torch.dtype) -> None:
    """The average is shown in the dtype of the weights, and the raw weights come back bitwise."""
    shell, model = ready(dtype=dtype)
    nn.init.constant_(model.w, 0.1)
    raw = model.w.detach().clone()
    with shell.averaged("fast"):
        assert (model.w.dtype, model.w.item()) == (dtype, 1.5)
    assert torch.equal(model.w, raw)


def test_each_model_has_its_own() -> None:
    """The average of one model is shown in that model only; both may be shown at once."""
    shell = pair_shell([EMA(model_key="a", decay=0.5), EMA(model_key="b", decay=0.75)])
    for _ in range(2):
        step_pair(shell, a=1.0, b=1.0)
    with shell.averaged("ema_a"):
        assert pair_applied(shell) == {"a": 1.5, "b": 2.0}
        with shell.averaged("ema_b"):
            assert pair_applied(shell) == {"a": 1.5, "b": 1.25}
    assert pair_applied(shell) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize(
    "wrap", [lambda hook: every(1, hook), lambda hook: when(lambda state: state.clock.step >= 0, hook)]
)
def test_a_wrapped_average_can_be_shown(wrap: Any) -> None:
    """An average inside a combinator is found by its name; one under `strict` too."""
    for strict in (False, True):
        shell = sgd_shell(model := Weight(), wrap(EMA(decay=0.5)), strict=strict)
        run(shell, [-1.0, -1.0])
        with shell.averaged():
            assert model.w.item() == 1.5
        assert model.w.item() == 2.0


def test_an_unknown_name_lists_those_there_are() -> None:
    """KeyError names the averages, not the other hooks; nothing is swapped in."""
    shell, model = ready(SkipSpikes(by=FixedLimit(limit=10.0)))
    for ask in (shell.averaged, shell.averaged_module):
        with pytest.raises(KeyError, match=r"no average named 'spikes'.*\['fast', 'slow'\]"), ExitStack() as stack:
            stack.enter_context(ask("spikes"))  # type: ignore[arg-type]
    assert model.w.item() == 2.0


@given(order=st.permutations(range(4)))
def test_contexts_may_be_left_in_any_order(order: list[int]) -> None:
    """Entered by hand and left in any order: the last one that is still entered is shown, then the raw weights."""
    shell, model = ready()
    names = ["fast", "slow", "fast", "slow"]
    entered = {place: shell.averaged(name) for place, name in enumerate(names)}
    for context in entered.values():
        context.__enter__()
    for place in order:
        entered.pop(place).__exit__(None, None, None)
        assert model.w.item() == (VALUES[names[max(entered)]] if entered else 2.0)
    step(shell, -1.0)
    assert model.w.item() == 3.0


def test_averages_of_parts_lie_over_each_other() -> None:
    """Averages of different parts of a model are shown together, and come off one by one."""
    model = nn.Sequential(Weight(), Weight())
    parts = [on(f"{place}.*", EMA(decay=0.5, name=name)) for place, name in enumerate(("head", "body"))]
    shell = sgd_shell(model, parts)
    for _ in range(2):
        with shell.batch():
            shell.update(model[0](-1.0) + model[1](-1.0))
    shown = []
    with shell.averaged("head"):
        shown.append([part.w.item() for part in model])
        with shell.averaged("body"):
            shown.append([part.w.item() for part in model])
        shown.append([part.w.item() for part in model])
    assert shown == [[1.5, 2.0], [1.5, 1.5], [1.5, 2.0]]
    assert [part.w.item() for part in model] == [2.0, 2.0]


def test_a_buffer_replaced_under_inference_mode_comes_back() -> None:
    """A forward inside, under inference_mode, leaves no inference tensor behind: training goes on."""
    shell = sgd_shell(model := Counting(), EMA(decay=0.5))
    run(shell, [-1.0, -1.0])
    with shell.averaged(), torch.inference_mode():
        model(1.0)
    run(shell, [-1.0])
    with shell.averaged():
        assert (model.w.item(), model.seen.item()) == (2.25, 2.25)
    assert not model.seen.is_inference()
