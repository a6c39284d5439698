"""Statistics of BatchNorm, estimated again for averaged weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from functrain import EMA, Shell, reestimate_batch_norm
from tests.scalars import Weight, run, sgd_shell
from tests.scripted import Planned


def network(*more: nn.Module, momentum: float | None = 0.1) -> nn.Module:
    """Return a model with two layers of BatchNorm, one in a child."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False))
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, momentum=momentum), *more, nn.ReLU(), inner)


def inputs(count: int, seed: int = 0) -> list[Tensor]:
    """Return batches of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2 + place % 3, 2, generator=generator) for place in range(count)]


LOADER = inputs(4, seed=9)


def trained(model: nn.Module) -> Shell:
    """Train a few steps under an average, and one at another speed."""
    shell = sgd_shell(model, [EMA(decay=0.5), EMA(decay=0.9, name="slow")], lr=0.5)
    for x in inputs(3):
        train(shell, model, x)
    return shell


def train(shell: Shell, model: nn.Module, x: Tensor) -> None:
    """Run one step."""
    with shell.batch():
        shell.update(model(x).square().mean() + model(x).sum())


def held(model: nn.Module) -> dict[str, Any]:
    """Return what a model holds, as plain numbers."""
    return {name: leaf.tolist() for name, leaf in model.state_dict().items()}


def settings_of(model: nn.Module) -> list[Any]:
    """Return mode and momentum of every part."""
    return [(part.training, getattr(part, "momentum", None)) for part in model.modules()]


def updated(model: nn.Module, loader: list[Tensor]) -> nn.Module:
    """Return a copy with the statistics that torch estimates."""
    other = copy.deepcopy(model)
    update_bn(loader, other)
    return other


@given(
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=5),
    seed=st.integers(0, 9),
    momentum=st.sampled_from([None, 0.1, 1.0]),
    modes=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_statistics_are_those_of_torch(sizes: list[int], seed: int, momentum: float | None, modes: list[bool]) -> None:
    """Bitwise ``update_bn``, whatever the mode of each part, which stays as it is, and so does the momentum."""
    model, generator = network(momentum=momentum), torch.Generator().manual_seed(seed)
    for part, mode in zip(model.modules(), modes, strict=False):
        part.training = mode
    loader = [torch.randn(size, 2, generator=generator) for size in sizes]
    right, before = held(updated(model, loader)), settings_of(model)
    reestimate_batch_norm(model, loader)
    assert held(model) == right
    assert settings_of(model) == before


def test_dropout_is_off_and_no_random_number_is_drawn() -> None:
    """Statistics are those of the model as it will be used; torch's ``update_bn`` would leave dropout on."""
    dropping, plain = network(nn.Dropout(0.5)), network(nn.Identity())
    random = torch.get_rng_state()
    for model in (dropping, plain):
        reestimate_batch_norm(model, LOADER)
    assert held(dropping) == held(plain)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("pack", [tuple, list])
def test_the_first_part_of_a_batch_is_the_input(pack: Callable[[Any], Any]) -> None:
    """As in ``update_bn``; anything else is said by ``forward``, which gets the whole batch."""
    first, second, third = network(), network(), network()
    reestimate_batch_norm(first, LOADER)
    reestimate_batch_norm(second, [pack((x, torch.zeros(len(x)))) for x in LOADER])
    reestimate_batch_norm(third, [{"x": x} for x in LOADER], forward=lambda module, batch: module(batch["x"]))
    assert held(first) == held(second) == held(third)


def test_a_layer_that_is_not_reached_keeps_its_statistics() -> None:
    """A forward that leaves a part out says nothing about that part; torch would reset it."""
    model = network()
    model[3][1].running_mean.fill_(7.0)
    model[3][1].num_batches_tracked.fill_(3)
    reestimate_batch_norm(model, LOADER, forward=lambda module, x: module[:2](x))
    assert model[3][1].running_mean.tolist() == [7.0] * 3
    assert (model[3][1].num_batches_tracked.item(), model[1].num_batches_tracked.item()) == (3, len(LOADER))


def failing(batches: int, error: type[BaseException]) -> Any:
    """Return a forward that raises after some batches."""
    left = iter(range(batches))

    def forward(module: Any, x: Tensor) -> None:
        module(x)
        if next(left, None) is None:
            raise error

    return forward


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize("error", [Planned, KeyboardInterrupt])
@pytest.mark.parametrize("way", ["function", "context", "module"])
def test_an_error_restores_everything(way: str, error: type[BaseException], batches: int) -> None:
    """Statistics, modes and momenta of the model are as before, and training goes on."""
    shell = trained(model := network())
    before, modes = held(model), settings_of(model)
    options: dict[str, Any] = {"batch_norm_from": LOADER, "forward": failing(batches, error)}
    acts: dict[str, Callable[[], Any]] = {
        "function": lambda: reestimate_batch_norm(model, LOADER, failing(batches, error)),
        "context": lambda: shell.averaged(**options).__enter__(),
        "module": lambda: shell.averaged_module(**options),
    }
    with pytest.raises(error):
        acts[way]()
    assert (held(model), settings_of(model)) == (before, modes)
    train(shell, model, LOADER[0])


def test_the_model_shows_statistics_of_its_average() -> None:
    """Inside, weights are averaged and statistics those of the average; afterwards the raw ones are back, bitwise."""
    shell = trained(model := network())
    raw, modes = held(model), settings_of(model)
    right = held(updated(shell.averaged_module(), LOADER))
    with shell.averaged(batch_norm_from=LOADER):
        assert (held(model), settings_of(model)) == (right, modes)
        stored = shell.state_dict()["state"]["buffers"]["main"]
    assert (held(model), settings_of(model)) == (raw, modes)
    assert {name: leaf.tolist() for name, leaf in stored.items()} == {name: raw[name] for name in stored}


@pytest.mark.parametrize("inner", ["ema", "slow"])
def test_statistics_survive_an_average_inside(inner: str) -> None:
    """After another average was shown inside, the outer one is shown again with its own statistics."""
    shell = trained(model := network())
    raw = held(model)
    with shell.averaged(batch_norm_from=LOADER):
        outer = held(model)
        with shell.averaged(inner):
            plain = held(model)
        with shell.averaged(inner, batch_norm_from=LOADER[:1]):
            assert held(model) not in (outer, plain)
        assert held(model) == outer
    assert held(model) == raw
    with shell.averaged(inner):
        assert held(model) == plain


def test_a_context_estimates_at_each_entering() -> None:
    """A context that is entered again after a step shows statistics of the newer average."""
    shell = trained(model := network())
    swap, seen = shell.averaged(batch_norm_from=LOADER), []
    for _ in range(2):
        with swap:
            seen.append(held(model))
        assert seen[-1] == held(updated(shell.averaged_module(), LOADER))
        train(shell, model, LOADER[0])
    assert seen[0] != seen[1]


def test_the_module_gets_statistics_of_its_own() -> None:
    """The module of the average has them, the model and the average keep theirs; the next call is as ever."""
    shell = trained(model := network())
    raw, averaged = held(model), held(shell.averaged_module())
    right = held(updated(shell.averaged_module(), LOADER))
    module = shell.averaged_module(batch_norm_from=LOADER)
    assert (held(module), held(model)) == (right, raw)
    assert held(shell.averaged_module()) == averaged
    assert shell.averaged_module() is module


def test_a_wrapped_model_is_called_through_its_wrapper() -> None:
    """A compiled model is called as it was given, and gives the statistics of the plain one."""
    shell = trained(model := torch.compile(network(), backend="eager"))
    right, called = held(updated(shell.averaged_module(), LOADER)), []
    with shell.averaged(batch_norm_from=LOADER, forward=lambda module, x: (called.append(module), module(x))):
        assert {name.removeprefix("_orig_mod."): leaf for name, leaf in held(model).items()} == right
    assert called == [model] * len(LOADER)


def end_of(look: Callable[[Shell], Any]) -> dict[str, Any]:
    """Return what a model with dropout holds after a run in which somebody looks after each step."""
    shell = trained(model := network(nn.Dropout(0.5)))
    for x in LOADER:
        train(shell, model, x)
        look(shell)
    return held(model)


def test_training_does_not_notice() -> None:
    """Looking at averages with statistics of their own, after each step, changes no bit of a run, dropout included."""

    def look(shell: Shell) -> None:
        shell.averaged_module(batch_norm_from=LOADER)
        with shell.averaged(batch_norm_from=LOADER):
            pass

    assert end_of(look) == end_of(lambda _: None)


EMPTY: dict[str, Any] = {"list": [], "used up": iter(()), "generator": (x for x in ())}


@pytest.mark.parametrize("loader", EMPTY)
@pytest.mark.parametrize("way", ["averaged", "averaged_module"])
def test_a_loader_without_batches_is_refused(way: str, loader: str) -> None:
    """An error says so, rather than statistics of nothing; the model keeps what it has."""
    shell = trained(model := network())
    before = held(model)
    with pytest.raises(ValueError, match="no batch"):
        {"averaged": lambda **o: shell.averaged(**o).__enter__(), "averaged_module": shell.averaged_module}[way](
            batch_norm_from=EMPTY[loader]
        )
    assert held(model) == before


@pytest.mark.parametrize("model", [Weight(), nn.Sequential(nn.BatchNorm1d(1, track_running_stats=False))])
def test_a_model_without_statistics_is_refused(model: nn.Module) -> None:
    """A model without BatchNorm, or whose BatchNorm keeps nothing, has nothing to estimate: the error says it."""
    with pytest.raises(ValueError, match=f"{type(model).__name__} has no BatchNorm"):
        reestimate_batch_norm(model, [torch.ones(2, 1)])
    shell = sgd_shell(weight := Weight(), EMA(decay=0.5))
    run(shell, [-1.0, -1.0])
    with pytest.raises(ValueError, match="batch_norm_from"), shell.averaged(batch_norm_from=[torch.ones(2, 1)]):
        pass
    assert weight.w.item() == 2.0


def test_a_forward_without_batches_is_refused() -> None:
    """``forward`` alone would be ignored."""
    shell = trained(network())
    for act in (shell.averaged, shell.averaged_module):
        with pytest.raises(ValueError, match="batch_norm_from"):
            act(forward=lambda module, x: module(x))
