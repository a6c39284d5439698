"""Which weights an average takes, what it keeps them in and where, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from functrain import EMA, SWA, InverseGammaWarmup, Shell, SwitchEMA, every
from tests.ids import plain
from tests.scalars import Weight, run, sgd_shell


def pair() -> nn.Module:
    """Return two layers in low precision, with a buffer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).to(torch.bfloat16)


def trained(hook: Any, model: nn.Module) -> Shell:
    """Return a shell after two steps."""
    shell = sgd_shell(model, hook, lr=0.1)
    for _ in range(2):
        with shell.batch():
            shell.update(sum(((leaf + 1).abs().square().sum() for leaf in model.parameters()), torch.zeros(())))
    return shell


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        (None, ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]),
        ("0.*", ["0.weight", "0.bias"]),
        (lambda key, name: key == "main" and name.endswith("2.bias"), ["2.bias"]),
    ],
    ids=["all", "pattern", "function"],
)
def test_selected_parameters(parameters: Any, names: list[str]) -> None:
    """The shadow holds what was selected; the averaged module takes all else from the model."""
    shell = trained(EMA(decay=0.5, parameters=parameters), model := pair())
    assert list(shell.state.hooks["ema"]["shadow"]) == names
    averaged = dict(shell.averaged_module().named_parameters())
    assert {name for name, leaf in model.named_parameters() if not torch.equal(leaf, averaged[name])} == set(names)


def test_only_what_was_selected_is_switched() -> None:
    """The other weights stay the optimizer's."""
    both = {"one": Weight(), "two": Weight()}
    model = nn.ModuleDict(both)
    shell = sgd_shell(nn.Sequential(model), SwitchEMA(switch_every=1, decay=0.5, parameters="*one*"))
    for _ in range(2):
        with shell.batch():
            shell.update(both["one"](-1.0) + both["two"](-1.0))
    assert (both["one"].w.item(), both["two"].w.item()) == (1.5, 2.0)


@pytest.mark.parametrize(
    ("dtype", "kept"), [(None, torch.float32), ("float32", torch.float32), ("float64", torch.float64)]
)
def test_what_a_shadow_is_kept_in(dtype: Any, kept: torch.dtype) -> None:
    """Floats and float buffers in the dtype asked for, counters in their own; what is handed out as the model."""
    shell = trained(EMA(decay=0.5, dtype=dtype), pair())
    slot = shell.state.hooks["ema"]
    found = {**slot["shadow"], **slot["buffers"]}
    assert {leaf.dtype for name, leaf in found.items() if not name.endswith("tracked")} == {kept}
    assert found["1.num_batches_tracked"].dtype is torch.int64
    assert {leaf.dtype for leaf in shell.averaged_module().parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_shadow_is_kept_in_less_than_the_weight(dtype: Any) -> None:
    """Double stays double, and complex stays complex."""
    model = nn.ParameterDict({"d": torch.ones(1, dtype=torch.float64), "z": torch.ones(1, dtype=torch.complex128)})
    shell = trained(EMA(dtype=dtype), model)
    assert {leaf.dtype for leaf in shell.state.hooks["ema"]["shadow"].values()} == {torch.float64, torch.complex128}


def test_a_shadow_from_afar_is_moved_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What visits the device of the weights and returns is bitwise what a group on it would be."""
    near = trained(EMA(decay=0.9), pair()).state.hooks["ema"]
    monkeypatch.setattr("functrain.hooks.average.as_they_are", lambda weight, _: weight)
    far = trained(EMA(decay=0.9, device="cpu"), pair()).state.hooks["ema"]
    for kind in ("shadow", "buffers"):
        assert all(torch.equal(near[kind][name], leaf) for name, leaf in far[kind].items())


def refusal(kind: type[Exception], hook: Any, model: nn.Module | None = None) -> str:
    """Return what is said at SETUP."""
    with pytest.raises(kind) as caught:
        sgd_shell(model or Weight(), hook)
    return str(caught.value)


def test_a_selector_that_takes_nothing_is_refused() -> None:
    """With what there is to take."""
    found = refusal(ValueError, EMA(parameters="head.*"), pair())
    assert "'ema': parameters='head.*' takes none of 'main', which has ['0.weight', '0.bias'" in found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_refused() -> None:
    """With the name of the hook and of the device."""
    assert "'swa' cannot keep its shadow on device='cuda:7': " in refusal(ValueError, SWA(device="cuda:7"))


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"decay": 0.5, "half_life": 3.0}, r"half_life=3\.0 and decay=0\.5 both say how fast to forget; give one"),
        (
            {"decay": 0.5, "warmup": InverseGammaWarmup(min_decay=0.6)},
            r"starts at min_decay=0\.6, above the decay of 0\.5",
        ),
        ({"half_life": 1.0, "warmup": InverseGammaWarmup(min_decay=0.6)}, r"min_decay=0\.6, above the decay of 0\.5"),
        ({"warmup": InverseGammaWarmup}, r"warmup must be TensorFlowWarmup\(\).* got <class"),
        ({"device": "gpu"}, r"device='gpu' is no device that keeps values; write \"cpu\" or \"cuda:0\""),
        ({"device": "meta"}, r"device='meta' is no device that keeps values"),
        ({"parameters": 3}, r"parameters must be a pattern such as \"head\.\*\" or a function"),
    ],
    ids=plain,
)
def test_a_contradiction_is_refused(configuration: dict[str, Any], message: str) -> None:
    """Both values and the way out, before anything is built."""
    with pytest.raises(ValidationError, match=message):
        EMA(**configuration)


def test_every_number_of_a_rule_is_compared_on_load() -> None:
    """A warm-up, a width, a device: the checkpoint and the pipeline must agree, counts apart."""
    stored = trained(EMA(warmup=InverseGammaWarmup(power=0.5)), pair()).state_dict()
    other = sgd_shell(pair(), EMA(warmup=InverseGammaWarmup(power=0.75)))
    with pytest.raises(ValueError, match=r"conflict in 'ema': warmup=.*0\.5.* in the checkpoint and warmup=.*0\.75"):
        other.load_state_dict(stored)


def test_averages_in_combinators() -> None:
    """Every second step a mean, beside a moving average of another name."""
    shell = sgd_shell(Weight(), [every(2, SWA()), EMA(decay=0.5, name="fast"), EMA(decay=0.75, name="slow")])
    run(shell, [-1.0] * 4)
    found = {name: shell.averaged_module(name).w.item() for name in ("swa", "fast", "slow")}
    assert found == {"swa": 3.0, "fast": 3.125, "slow": 2.265625}
