"""The rows "EMA" of the contract that say "the same": both sides, side by side."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from functrain import EMA, Shell
from tests.contract.toys import scalar
from tests.peer.driver import EMAHook, PeerRun
from tests.peer.toys import message_of, peer_of, shell_of, train
from tests.peer.user_hooks import PeerScript

pytestmark = pytest.mark.peer
FIELDS = ("model_key", "decay", "update_every", "start_step", "use_buffers", "num_updates")


def test_fields_and_defaults_are_the_same() -> None:
    """The six fields have the same names and defaults, and keys are stripped."""
    theirs, ours = EMAHook(), EMA()
    assert [getattr(ours, name) for name in FIELDS] == [getattr(theirs, name) for name in FIELDS]
    assert set(type(theirs).model_fields) == set(FIELDS)
    assert EMAHook(model_key=" a ").model_key == EMA(model_key=" a ").model_key == "a"
    assert theirs.priority == ours.priority


NUMBERS = [("decay", value) for value in (0, 0.5, 0.9999999, 1.0, -1e-9, float("nan"), float("inf"))]
COUNTS = [(field, n) for field in ("update_every", "start_step", "num_updates") for n in (-1, 0, 1, 2, 1.5)]


@pytest.mark.parametrize(("field", "value"), [*NUMBERS, *COUNTS])
def test_bounds_are_the_same(field: str, value: float) -> None:
    """Both sides refuse and accept the same numbers."""
    accepted = []
    for hook in (EMAHook, EMA):
        try:
            hook(**{field: value})
            accepted.append(True)
        except pydantic.ValidationError:
            accepted.append(False)
    assert accepted[0] is accepted[1]


@pytest.mark.parametrize("wrong", [{"decay": True}, {"update_every": "3"}, {"start_step": True}])
def test_bools_and_strings_are_refused_only_here(wrong: dict[str, Any]) -> None:
    """The peer takes True and "3" for numbers; here they are refused (stricter)."""
    if wrong != {"decay": True}:
        EMAHook(**wrong)
    with pytest.raises(pydantic.ValidationError):
        EMA(**wrong)


@pytest.mark.parametrize("wrong", [{"shadow": "cpu"}, {"model_key": " "}])
def test_unknown_fields_and_empty_keys_are_refused(wrong: dict[str, Any]) -> None:
    """Unknown fields and blank keys are refused by both."""
    for hook in (EMAHook, EMA):
        with pytest.raises(pydantic.ValidationError):
            hook(**wrong)


def both(steps: int, *, model: type[nn.Module] | None = None, **settings: Any) -> tuple[PeerRun, Any, Shell]:
    """Train the same toy on both sides, and return the peer's run and hook, and the shell."""
    theirs, ours = (scalar() if model is None else model() for _ in range(2))
    hook = EMAHook(**settings)
    run, shell = peer_of(theirs, hook), shell_of(ours, EMA(**settings))
    train(run, theirs, *[1.0] * steps)
    train(shell, ours, *[1.0] * steps)
    return run, hook, shell


@given(every=st.integers(1, 4), start=st.integers(0, 5), steps=st.integers(1, 7), initial=st.integers(0, 3))
def test_eligible_steps_are_the_same(every: int, start: int, steps: int, initial: int) -> None:
    """Both count the same updates, from whatever `num_updates` starts, and hold the same average."""
    _, hook, shell = both(steps, decay=0.5, update_every=every, start_step=start, num_updates=initial)
    slot, averaged = shell.state.hooks["ema"], hook.get_averaged_model()
    assert (slot["num_updates"], slot["n_averaged"]) == (hook.num_updates, averaged.n_averaged.item())
    if slot["n_averaged"]:
        assert torch.equal(shell.averaged_module("ema").weight, averaged.module.weight)


@given(decay=st.floats(0.0, 1.0, exclude_max=True))
def test_the_weight_of_the_lerp_is_the_same(decay: float) -> None:
    """For every decay the averages are bitwise equal."""
    _, hook, shell = both(3, decay=decay)
    assert torch.equal(shell.averaged_module("ema").weight, hook.get_averaged_model().module.weight)


class Everything(nn.Module):
    """Frozen, complex, tied and float64 parameters, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.full((2,), 3.0), requires_grad=False)
        self.wave = nn.Parameter(torch.full((2,), 1j))
        self.wide = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.tied = self.wide
        self.register_buffer("mean", torch.full((2,), 0.25))


@pytest.mark.parametrize("use_buffers", [False, True])
def test_everything_is_averaged_alike(use_buffers: bool) -> None:
    """Frozen, complex, float64 and tied parameters, and float buffers, are bitwise the peer's."""
    theirs, ours, settings = Everything(), Everything(), {"decay": 0.3, "use_buffers": use_buffers}
    run = peer_of(theirs, hook := EMAHook(**settings))
    shell = shell_of(ours, EMA(**settings))
    for step in range(3):
        for model in (theirs, ours):
            model.mean += step
            model.frozen += step
        run.batch(lambda: _loss(theirs))
        with shell.batch():
            shell.update(_loss(ours))
    expected = hook.get_averaged_model().module.state_dict()
    found = shell.averaged_module("ema").state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def _loss(model: Everything) -> torch.Tensor:
    return (model.wave * (1 + 2j)).sum().real + model.wide.sum() * 0.7


def test_unknown_model_key_is_a_key_error_with_the_sorted_keys() -> None:
    """An unknown `model_key` is a KeyError at SETUP with the key and the sorted keys, on both sides."""
    models = {"b": scalar(), "a": scalar()}
    optimizer = SGD(models["a"].parameters(), lr=1.0)
    for action in (
        lambda: PeerRun(models, [optimizer], [EMAHook(model_key="teacher")]),
        lambda: Shell(models, optimizer, EMA(model_key="teacher")),
    ):
        said = message_of(KeyError, action)
        assert "'teacher'" in said
        assert "['a', 'b']" in said


def test_the_copy_is_built_at_setup_without_counting() -> None:
    """At SETUP both hold a copy of the weights and have counted no update."""
    _, hook, shell = both(0, num_updates=2)
    slot, averaged = shell.state.hooks["ema"], hook.get_averaged_model()
    assert torch.equal(slot["shadow"]["weight"], averaged.module.weight)
    assert (slot["n_averaged"], slot["num_updates"]) == (averaged.n_averaged.item(), hook.num_updates) == (0, 2)


def test_a_skipped_step_is_not_averaged() -> None:
    """After a veto neither side updates."""
    skip = PeerScript({"DO_OPTIMIZER_STEP": {1}})
    train(peer_of(model := scalar(), hook := EMAHook(decay=0.5), skip), model, 1.0, 1.0, 1.0)
    assert hook.num_updates == 2
    assert hook.get_averaged_model().module.weight.item() == -1.5


def test_the_averaged_model_loads_strictly() -> None:
    """What both hand out loads strictly into a fresh model."""
    _, hook, shell = both(2, decay=0.5)
    for module in (hook.get_averaged_model().module, shell.averaged_module("ema")):
        fresh = scalar()
        fresh.load_state_dict(module.state_dict(), strict=True)
        assert fresh.weight.item() == -1.5


def test_before_the_first_update_both_say_when() -> None:
    """A RuntimeError names both numbers: there before the build, here before the first update (stricter)."""
    settings = {"start_step": 31, "update_every": 17}
    shell = shell_of(scalar(), EMA(**settings))
    for action in (EMAHook(**settings).get_averaged_model, lambda: shell.averaged_module("ema")):
        said = message_of(RuntimeError, action)
        assert "31" in said
        assert "17" in said


class Patched(nn.Module):
    """A model that notes its weight when it is told that it was copied."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.calls: list[float] = []

    def modify_ema_methods(self) -> None:
        """Note the weight."""
        self.calls.append(self.weight.item())


def test_modify_ema_methods_is_called_once_on_the_copy() -> None:
    """Both call it once on what they hand out, and never on the source."""
    run, hook, shell = both(2, model=Patched, decay=0.5)
    assert len(hook.get_averaged_model().module.calls) == len(shell.averaged_module("ema").calls) == 1
    assert run.models["main"].calls == []
