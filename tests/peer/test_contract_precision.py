"""The rows "Mixed precision" of the contract that say "the same": both sides, side by side."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
import torch
from torch import Tensor, nn

import functrain
from functrain import MixedPrecision, Shell
from tests.contract.toys import push, scalar
from tests.peer.driver import MixedPrecisionHook, PeerRun
from tests.peer.toys import message_of, peer_of, recorder, shell_of, train
from tests.peer.user_hooks import PeerAccumulate, PeerRecorder, PeerScript, mixed_precision

pytestmark = pytest.mark.peer
NAMES = [
    "float32",
    "torch.float32",
    "FP32",
    "fp32",
    "float",
    "bfloat16",
    "BF16",
    "float16",
    "fp16",
    "half",
    "Half",
]


@pytest.mark.parametrize("name", [*NAMES, torch.float32, torch.bfloat16, torch.float16])
def test_precision_spellings_mean_the_same(name: Any) -> None:
    """Every spelling that the peer takes means the same dtype here."""
    assert MixedPrecision(precision=name).precision is MixedPrecisionHook(precision=name).precision


@pytest.mark.parametrize("wrong", ["fp64", "double", torch.float64, "int8"])
def test_precision_refuses_the_same(wrong: Any) -> None:
    """Both refuse other precisions with the same list."""
    for hook in (MixedPrecisionHook, MixedPrecision):
        with pytest.raises(pydantic.ValidationError) as error:
            hook(precision=wrong)
        assert "must be one of (float32, bfloat16, float16); got " in str(error.value)
        assert str(wrong).removeprefix("torch.") in str(error.value)


@pytest.mark.parametrize("hook", [MixedPrecisionHook, MixedPrecision])
def test_exclusive_and_priority_20(hook: Any) -> None:
    """Priority 20, and once, on both sides."""
    assert hook(precision="bf16").priority == 20
    said = message_of(ValueError, lambda: hook(precision="bf16") + hook(precision="fp16"))
    assert said.count(hook.__name__) >= 2


def test_scaler_constants_are_the_same() -> None:
    """The constants are those of the scaler that the peer builds."""
    train(peer_of(model := scalar(), hook := mixed_precision("fp16")), model, 1.0)
    ours, theirs = MixedPrecision(precision="fp16"), hook._scaler
    assert ours.init_scale == theirs.get_scale() == 65536.0
    assert ours.growth_factor == theirs.get_growth_factor()
    assert ours.backoff_factor == theirs.get_backoff_factor()
    assert ours.growth_interval == theirs.get_growth_interval()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("vetoed", [False, True])
def test_autocast_spans_the_same(precision: str, vetoed: bool) -> None:
    """Forward and loss run under the same autocast, also when zeroing is vetoed; the backward does not."""
    theirs, ours = _spans_there(precision, vetoed=vetoed), _spans_here(precision, vetoed=vetoed)
    assert theirs == ours
    assert ours["backward"] is ours["after"] is None


def _autocast() -> torch.dtype | None:
    """Return the dtype of autocast on a CPU, if it is on."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def _noted(model: nn.Module, spans: dict[str, Any]) -> Tensor:
    """Note the autocast of the forward, and of the backward when it comes."""
    spans["forward"] = _autocast()
    loss = push(model, 1.0)
    loss.register_hook(lambda _gradient: spans.update(backward=_autocast()))
    return loss


def _spans_there(precision: str, *, vetoed: bool) -> dict[str, Any]:
    """Note the peer's autocast."""
    spans: dict[str, Any] = {}
    run = peer_of(model := scalar(), mixed_precision(precision), PeerScript({"BEFORE_BATCH": {0} if vetoed else ()}))
    run.begin()
    run.backward(_noted(model, spans))
    return {**spans, "after": _autocast()}


def _spans_here(precision: str, *, vetoed: bool) -> dict[str, Any]:
    """Note functrain's autocast."""
    spans: dict[str, Any] = {}
    veto = recorder([], {"BEFORE_BATCH": not vetoed}, name="veto")
    shell = shell_of(model := scalar(), MixedPrecision(precision=precision), veto)
    with shell.batch():
        shell.update(_noted(model, spans))
        spans["after"] = _autocast()
    return spans


def test_an_accumulation_veto_is_no_scaler_event() -> None:
    """Waiting in a window leaves gradients scaled and the scale alone, on both sides."""
    train(peer_of(theirs := scalar(), hook := mixed_precision("fp16"), PeerAccumulate(2)), theirs, 2.0)
    shell = shell_of(ours := scalar(), MixedPrecision(precision="fp16"), functrain.Accumulate(every=2))
    train(shell, ours, 2.0)
    assert theirs.weight.grad.item() == ours.weight.grad.item() == 65536.0
    assert (hook._scaler.get_scale(), hook._scaler._get_growth_tracker()) == (65536.0, 0)
    assert (shell.state.scaler["scale"], shell.state.scaler["growth_tracker"]) == (65536.0, 0)


def test_a_later_veto_stops_only_the_peer() -> None:
    """After a veto of priority 40 the peer's scaler is stuck at the next step; here it trains on (lifted)."""
    run = peer_of(theirs := scalar(), mixed_precision("fp16"), PeerScript({"DO_OPTIMIZER_STEP": {0}}))
    train(run, theirs, 1.0)
    with pytest.raises(RuntimeError, match="already been called"):
        train(run, theirs, 1.0)
    veto = functrain.hook(lambda s, _stage, _skip: (s, s.clock.batch != 0, s.loss), name="v", priority=40)
    train(shell_of(ours := scalar(), MixedPrecision(precision="fp16"), veto), ours, 1.0, 1.0)
    assert ours.weight.item() == -1.0


def test_inference_autocast_is_the_same() -> None:
    """`inference_autocast(device)` opens the same autocast on both sides."""
    for precision in ("fp32", "bf16", "fp16"):
        seen = []
        for hook in (MixedPrecisionHook, MixedPrecision):
            with hook(precision=precision).inference_autocast(torch.device("cpu")):
                seen.append(_autocast())
        assert seen[0] is seen[1]


class Look(PeerRecorder):
    """Looks at the scaler in the context."""

    def __call__(self, ctx: Any, _stage: Any, _will_skip: bool) -> object:
        """Note it."""
        self.log.append(ctx.grad_scaler)
        return True, ctx.loss


def test_the_scaler_is_visible_to_later_hooks_on_both_sides() -> None:
    """The peer's context holds its scaler at later priorities; ours is in the state at every update stage."""
    train(peer_of(model := scalar(), mixed_precision("fp16"), theirs := Look()), model, 1.0)
    assert [isinstance(scaler, torch.amp.GradScaler) for scaler in theirs.log] == [False, True, True, True, True]
    ours: list[object] = []
    note = lambda state, _stage: ours.append(state.scaler["scale"])  # noqa: E731
    look = functrain.observe("look", note, stages={functrain.Stage.SETUP, *functrain.UPDATE_STAGES}, priority=60)
    train(shell_of(model, MixedPrecision(precision="fp16"), look), model, 1.0)
    assert ours == [65536.0] * 5


def test_a_users_scaler_drives_the_peers_step_too() -> None:
    """The peer steps with a scaler it was given; here one needs MixedPrecision, and is kept in step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    run = PeerRun(
        {"main": (model := scalar())},
        [torch.optim.SGD(model.parameters(), lr=1.0)],
        [mixed_precision("fp16", scaler)],
    )
    train(run, model, 1.0)
    own = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    optimizer = torch.optim.SGD((ours := scalar()).parameters(), lr=1.0)
    train(Shell(ours, optimizer, MixedPrecision(precision="fp16"), scaler=own), ours, 1.0)
    assert scaler.get_scale() == own.get_scale() == 16.0
    assert model.weight.item() == ours.weight.item() == -1.0
