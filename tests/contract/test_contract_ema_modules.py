"""The rows "EMA" of the contract: what is handed out, wrappers, validation and checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

import functrain
from functrain import EMA, Hook, Shell, named
from tests.contract.toys import scalar, shell_of, train


def trained(model: nn.Module, hook: Hook, *gradients: float) -> Shell:
    """Train a model under one hook."""
    train(shell := shell_of(model, hook), model, *gradients)
    return shell


def test_averaged_module_says_when_it_will_exist() -> None:
    """Until the first update there is a RuntimeError with start_step and update_every (stricter)."""
    shell = trained(model := scalar(), EMA(start_step=3, update_every=2), 1.0)
    with pytest.raises(RuntimeError, match=r"(?s)3.*2|2.*3"):
        shell.averaged_module("ema")
    train(shell, model, 1.0, 1.0, 1.0)
    assert shell.averaged_module("ema").weight.item() == -4.0


def test_averaged_module_is_one_live_object() -> None:
    """It is the same object each time, refreshed, and not the source."""
    shell = trained(model := scalar(), EMA(decay=0.5), 1.0)
    module = shell.averaged_module("ema")
    train(shell, model, 1.0)
    assert shell.averaged_module("ema") is module
    assert module is not model
    assert module.weight.item() == -1.5
    assert not module.weight.requires_grad


def test_averaged_module_loads_strictly() -> None:
    """Its `state_dict()` loads strictly into a fresh model."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    shell = shell_of(model, EMA())
    with shell.batch():
        shell.update(model(torch.randn(3, 2)).sum())
    fresh = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    fresh.load_state_dict(shell.averaged_module("ema").state_dict(), strict=True)
    assert torch.equal(fresh[0].weight, model[0].weight)


def test_dtypes_follow_the_source_tensor_by_tensor() -> None:
    """What is handed out follows the source's dtype tensor by tensor, also after a restore."""
    model = nn.Sequential(scalar().to(torch.bfloat16), scalar().to(torch.float64))
    shell = trained(model, EMA(decay=0.5), 1.0)
    _assert_dtypes(shell)
    shell.restore(shell.snapshot())
    _assert_dtypes(shell)


def _assert_dtypes(shell: Shell) -> None:
    module = shell.averaged_module("ema")
    assert [p.dtype for p in module.parameters()] == [torch.bfloat16, torch.float64]


class Patched(nn.Module):
    """A model that restores something after it was copied, before weights are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.calls: list[float] = []

    def modify_ema_methods(self) -> None:
        """Note the weight at the time of the call."""
        self.calls.append(self.weight.item())


def test_modify_ema_methods_is_called_once_before_weights_are_loaded() -> None:
    """It is called once per handed-out module, right after the copy, before averages are loaded."""
    shell = trained(model := Patched(), EMA(decay=0.5), 1.0, 1.0)
    module = shell.averaged_module("ema")
    assert shell.averaged_module("ema") is module
    assert (module.calls, module.weight.item()) == ([-2.0], -1.5)
    assert model.calls == []


def test_modify_ema_methods_that_is_not_callable_is_ignored() -> None:
    """An attribute of that name that is not callable is ignored."""
    model = scalar()
    model.modify_ema_methods = "not a method"
    assert trained(model, EMA(), 1.0).averaged_module("ema").weight.item() == -1.0


def test_module_factory_makes_the_module() -> None:
    """`module_factory=` makes the module that is handed out, and the averages are loaded into it."""
    made: list[nn.Module] = []

    def factory() -> nn.Module:
        made.append(scalar(9.0))
        return made[-1]

    module = trained(scalar(), EMA(decay=0.5), 1.0, 1.0).averaged_module("ema", module_factory=factory)
    assert made == [module]
    assert module.weight.item() == -1.5


class Parent(nn.Module):
    """A user's module with a child of its own called `module`, and more beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.head = scalar(), scalar()


def test_a_childs_name_is_no_wrapper() -> None:
    """A user's own child called `module` is not taken for a wrapper (lifted)."""
    module = trained(Parent(), EMA(), 1.0).averaged_module("ema")
    assert sorted(name for name, _ in module.named_parameters()) == ["head.weight", "module.weight"]


def compiled(module: nn.Module) -> Any:
    """Wrap a module for compilation, without importing a compiler."""
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, checkpoint_wrapper, lambda m: compiled(checkpoint_wrapper(m))])
def test_wrappers_are_unwrapped_by_type_at_any_depth(wrap: Any) -> None:
    """Names under compile and checkpoint wrappers are the plain ones (lifted)."""
    module = trained(wrap(nn.Sequential(scalar())), EMA(decay=0.5), 1.0, 1.0).averaged_module("ema")
    assert [name for name, _ in module.named_parameters()] == ["0.weight"]
    assert module[0].weight.item() == -1.5


@pytest.fixture
def group(tmp_path: Any) -> Any:
    """Join a process group of one."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_ddp_is_unwrapped() -> None:
    """Names under DDP are the plain ones, and the average follows (lifted)."""
    model = DistributedDataParallel(nn.Sequential(scalar()))
    shell = shell_of(model, EMA(decay=0.5))
    for _ in range(2):
        with shell.batch():
            shell.update(model(torch.ones(1, 1)).sum())
    module = shell.averaged_module("ema")
    assert [(name, p.item()) for name, p in module.named_parameters()] == [("0.weight", -1.5)]


@pytest.mark.usefixtures("group")
def test_fully_sharded_models_are_supported() -> None:
    """Under FSDP2 the average is a DTensor like its source (lifted)."""
    model = torch.distributed.fsdp.fully_shard(nn.Linear(4, 1, bias=False))
    shell = shell_of(model, EMA(decay=0.5))
    with shell.batch():
        shell.update(model(torch.ones(1, 4)).sum())
    shadow = shell.state.hooks["ema"]["shadow"]["weight"]
    assert isinstance(shadow, torch.distributed.tensor.DTensor)
    assert torch.equal(shadow.full_tensor(), model.weight.full_tensor())


def test_fit_validates_with_the_average_once_there_is_one() -> None:
    """`fit` validates each model with its own average, once `n_averaged > 0`."""
    seen: list[float] = []

    def validate(model: nn.Module) -> dict[str, float]:
        seen.append(model.weight.item())
        return {"total_loss": 0.0}

    shell = shell_of(scalar(), EMA(decay=0.5, start_step=2))
    _fit(shell, validate, epochs=3)
    assert seen == [-1.0, -2.0, -2.5]


def _fit(shell: Shell, validate: Any, epochs: int) -> None:
    """Fit epochs of one batch of gradient 1."""
    functrain.fit(shell, [1.0], lambda m, g: m.weight.sum() * g, epochs=epochs, validate=validate, progress=False)


def test_fit_validates_each_model_with_its_own_average() -> None:
    """Of several models each holds its own average; one without an average holds its weights."""
    models = {key: scalar() for key in "abc"}
    optimizer = torch.optim.SGD([model.weight for model in models.values()], lr=1.0)
    shell = Shell(models, optimizer, [EMA(model_key="a", decay=0.5), EMA(model_key="b", decay=0.25)])
    seen: list[list[float]] = []
    note = lambda held: seen.append([model.weight.item() for model in held.values()]) or 0.0  # noqa: E731
    loss = lambda held, g: sum(model.weight.sum() for model in held.values()) * g  # noqa: E731
    functrain.fit(shell, [1.0], loss, epochs=2, validate=note, progress=False)
    assert seen == [[-1.0, -1.0, -1.0], [-1.5, -1.75, -2.0]]


def test_fit_validates_with_a_restored_average_at_once() -> None:
    """Straight after a restore `fit` validates with the average that was restored."""
    seen: list[float] = []
    first = trained(scalar(), EMA(decay=0.5, update_every=2), 1.0, 1.0)
    second = shell_of(scalar(), EMA(decay=0.5, update_every=2))
    second.load_state_dict(first.state_dict())
    _fit(second, lambda model: seen.append(model.weight.item()) or 0.0, epochs=1)
    assert seen == [-2.0]


def test_fit_asks_which_of_two_averages_to_validate_with() -> None:
    """Two averages of one model: ValueError asking for `validate_with=`."""
    shell = shell_of(scalar(), EMA() + named("slow", EMA(decay=0.9999)))
    with pytest.raises(ValueError, match="validate_with="):
        _fit(shell, lambda _model: 0.0, epochs=1)
