"""The rows "EMA" of the contract about saving and loading: what the peer saved is loaded here, by the same rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from functrain import EMA, Shell
from tests.contract.toys import scalar
from tests.peer.driver import EMAHook, PeerRun
from tests.peer.toys import message_of, peer_of, shell_of, train

pytestmark = pytest.mark.peer
SETTINGS = {"decay": 0.5, "update_every": 1, "start_step": 0, "use_buffers": True}


def saved(*gradients: float, **settings: Any) -> tuple[PeerRun, Any]:
    """Train the peer and return its run and its hook."""
    run = peer_of(scalar(), hook := EMAHook(**{**SETTINGS, **settings}))
    train(run, run.models["main"], *gradients)
    return run, hook


def fresh(**settings: Any) -> tuple[Shell, torch.nn.Module]:
    """Build a shell that has not trained, around a weight of the same value as after two steps of 1."""
    return shell_of(model := scalar(-2.0), EMA(**{**SETTINGS, **settings})), model


def test_state_dict_has_the_six_fields_and_aliases_only_there() -> None:
    """The peer's state holds its fields and live tensors; ours hands out copies."""
    run, hook = saved(1.0, 1.0)
    stored = hook.state_dict()
    assert set(stored) == {*SETTINGS, "model_key", "num_updates", "averaged_model_state"}
    train(run, run.models["main"], 4.0)
    assert stored["averaged_model_state"]["module.weight"].item() == -3.75
    shell, model = fresh()
    train(shell, model, 1.0)
    ours = shell.state_dict()
    train(shell, model, 4.0)
    assert ours["state"]["hooks"]["ema"]["shadow"]["weight"].item() == -3.0


def test_the_peers_layout_is_loaded() -> None:
    """What the peer saved continues here: average, `n_averaged` and `num_updates`."""
    run, hook = saved(1.0, 1.0, num_updates=3)
    shell, model = fresh()
    shell.load_average("ema", hook.state_dict())
    for trained, weights in ((run, run.models["main"]), (shell, model)):
        train(trained, weights, 1.0)
    slot = shell.state.hooks["ema"]
    assert (slot["n_averaged"], slot["num_updates"]) == (3, 6)
    assert torch.equal(shell.averaged_module("ema").weight, hook.get_averaged_model().module.weight)


@pytest.mark.parametrize(("field", "value"), [("decay", 0.9), ("update_every", 2), ("use_buffers", False)])
def test_a_conflict_is_refused_and_nothing_changes(field: str, value: object) -> None:
    """Every stored field but `num_updates` must equal the constructor's: field and both values, on both sides."""
    stored, other, (shell, _) = (
        saved(1.0)[1].state_dict(),
        EMAHook(**{**SETTINGS, field: value}),
        fresh(**{field: value}),
    )
    for load in (other.load_state_dict, lambda state: shell.load_average("ema", state)):
        said = message_of(ValueError, lambda load=load: load(stored))
        assert all(part in said for part in (field, repr(value), repr(SETTINGS[field])))
    assert (other.num_updates, shell.state.hooks["ema"]["num_updates"]) == (0, 0)


def test_missing_keys_are_ignored() -> None:
    """A state that holds only some keys loads: `num_updates` overwrites, the rest stays."""
    hook, (shell, _) = EMAHook(**SETTINGS), fresh()
    for load in (hook.load_state_dict, lambda state: shell.load_average("ema", state)):
        load({"num_updates": 5})
    assert hook.num_updates == shell.state.hooks["ema"]["num_updates"] == 5


def test_a_missing_average_clears_the_old_one() -> None:
    """Without an averaged state: RuntimeError again, the next update copies, `num_updates` is kept."""
    run, hook = saved(1.0, 1.0)
    shell, model = fresh()
    train(shell, model, 1.0, 1.0)
    hook.load_state_dict({})
    shell.load_average("ema", {})
    for get in (hook.get_averaged_model, lambda: shell.averaged_module("ema")):
        with pytest.raises(RuntimeError):
            get()
    train(run, run.models["main"], 1.0)
    train(shell, model, 1.0)
    assert (hook.num_updates, shell.state.hooks["ema"]["num_updates"]) == (3, 3)
    assert hook.get_averaged_model().module.weight.item() == run.models["main"].weight.item()
    assert shell.averaged_module("ema").weight.item() == model.weight.item()


def test_unknown_keys_are_reported_here() -> None:
    """A key that nobody knows is silently passed over there, and named here; nothing is loaded then."""
    stored = {**saved(1.0)[1].state_dict(), "warmup": 3}
    EMAHook(**SETTINGS).load_state_dict(stored)
    shell, _ = fresh()
    with pytest.raises((KeyError, ValueError), match="warmup"):
        shell.load_average("ema", stored)
    assert shell.state.hooks["ema"]["num_updates"] == 0
