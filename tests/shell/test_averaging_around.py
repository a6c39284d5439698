"""`shell.averaged()` and what goes on around it: autocast, caches, casts, compilers, threads, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import accumulate
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, parametrize
from torch.profiler import ProfilerActivity, profile

from functrain import EMA, Shell, on
from tests.scalars import Weight, run, sgd_shell

ONES = torch.ones(2, 3)


def network() -> nn.Module:
    """Return a model with parameters of every kind of layer that keeps something beside them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), parametrizations.weight_norm(nn.Linear(4, 1)))


def trained(model: nn.Module, hooks: Any = None, **options: Any) -> Shell:
    """Train a few steps under an average."""
    shell = sgd_shell(model, hooks or EMA(decay=0.5), lr=0.1, **options)
    for place in range(3):
        train(shell, model, place)
    return shell


def train(shell: Shell, model: nn.Module, place: int = 0) -> None:
    """Run one step."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(place))
    with shell.batch():
        shell.update(model(x.to(next(model.parameters()).dtype)).square().mean())


def held(model: nn.Module) -> dict[str, Any]:
    """Return what a model holds, as plain numbers."""
    return {name: leaf.tolist() for name, leaf in model.state_dict().items()}


def test_one_context_may_be_entered_again() -> None:
    """The object itself is re-entrant: one after the other, inside itself, and as a decorator."""
    shell = sgd_shell(model := Weight(), EMA(decay=0.5))
    run(shell, [-1.0, -1.0])
    swap = shell.averaged()
    with swap, swap:
        assert model.w.item() == 1.5
    assert model.w.item() == 2.0
    assert swap(model.w.item)() == 1.5
    with swap:
        assert model.w.item() == 1.5
    run(shell, [-1.0])
    assert model.w.item() == 3.0


@pytest.mark.parametrize("strict", [True, False])
def test_the_average_is_that_of_the_entering(strict: bool) -> None:
    """A context that was made before a step shows the average after it, whether or not states are donated."""
    shell = sgd_shell(model := Weight(), EMA(decay=0.5), strict=strict)
    run(shell, [-1.0, -1.0])
    swap = shell.averaged()
    run(shell, [-1.0])
    with swap:
        assert model.w.item() == 2.25


CACHES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "parametrize.cached": parametrize.cached,
}


@pytest.mark.parametrize("cache", CACHES)
def test_nothing_computed_from_other_weights_is_used(cache: str) -> None:
    """Weights that a cache outside keeps, cast or parametrized, are computed again inside and after it."""
    shell = trained(model := network())
    with CACHES[cache]():
        raw = model(ONES)
        with shell.averaged():
            averaged = model(ONES)
        again = model(ONES)
    with CACHES[cache]():
        right = shell.averaged_module()(ONES)
    assert torch.equal(averaged, right)
    assert torch.equal(again, raw)
    assert not torch.equal(raw, averaged)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("nested", [False, True])
def test_a_model_that_is_cast_inside_is_cast_as_a_whole(dtype: torch.dtype, nested: bool) -> None:
    """Raw weights and buffers come back in the new dtype, and what is saved inside has it, too."""
    shell = trained(model := network(), [EMA(decay=0.5), EMA(decay=0.9, name="slow")])
    right = held(network_like(model).to(dtype))
    with shell.averaged():
        if nested:
            with shell.averaged("slow"):
                model.to(dtype)
        else:
            model.to(dtype)
        taken = shell.snapshot().state
    assert {leaf.dtype for leaf in model.state_dict().values()} == {dtype, torch.int64}
    assert held(model) == right
    stored = {**taken.params["main"], **taken.buffers["main"]}
    assert {name: leaf.tolist() for name, leaf in stored.items()} == right
    assert {leaf.dtype for leaf in stored.values()} == {dtype, torch.int64}


def network_like(model: nn.Module) -> nn.Module:
    """Return another network with the same values."""
    other = network()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("leave_outside", [False, True])
def test_inference_mode_may_begin_and_end_anywhere(leave_outside: bool) -> None:
    """Entered under inference_mode, and left under it or after it; training goes on."""
    shell = sgd_shell(model := Weight(), EMA(decay=0.5))
    run(shell, [-1.0, -1.0])
    swap = shell.averaged()
    with torch.inference_mode():
        swap.__enter__()
        assert model.w.item() == 1.5
        if not leave_outside:
            swap.__exit__(None, None, None)
    if leave_outside:
        swap.__exit__(None, None, None)
    run(shell, [-1.0])
    assert (model.w.item(), shell.averaged_module().w.item()) == (3.0, 2.25)


def test_a_compiled_model_is_not_compiled_again() -> None:
    """The storage is the model's own, so that a compiler that has looked at it need not look again."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    shell = trained(model := torch.compile(network().eval(), backend=backend))
    with torch.no_grad():
        raw = model(ONES)
        before = len(graphs)
        with shell.averaged():
            averaged = model(ONES)
        assert torch.equal(model(ONES), raw)
    assert len(graphs) == before
    assert not torch.equal(averaged, raw)


@pytest.fixture
def group(tmp_path: Any) -> Iterator[None]:
    """Join a process group of one."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_distributed_model_shows_its_average() -> None:
    """Under DDP the average is shown, and training goes on afterwards as if nobody had looked."""
    looked = DistributedDataParallel(network())
    shell, other = trained(looked), trained(network())
    with shell.averaged():
        assert torch.equal(looked(ONES), other.averaged_module()(ONES))
    for each in (shell, other):
        train(each, each._driver.applier.models.modules["main"])
    pairs = zip(shell.state.params["main"].values(), other.state.params["main"].values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


class Tied(nn.Module):
    """An encoder and a decoder of one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        """Encode and decode."""
        return self.decoder(self.encoder(x).relu())


def test_tied_weights_stay_tied() -> None:
    """Both names show the average, in one storage; so does the module of the average."""
    shell = trained(model := Tied())
    shadow = shell.state.hooks["ema"]["shadow"]["encoder.weight"]
    with shell.averaged():
        assert torch.equal(model.decoder.weight, shadow)
        assert model.decoder.weight is model.encoder.weight
    module = shell.averaged_module()
    assert module.decoder.weight is module.encoder.weight
    assert sorted(module.state_dict()) == ["decoder.weight", "encoder.weight"]


def test_an_average_of_a_selection_leaves_the_rest_raw() -> None:
    """Parameters that an average does not hold are shown, saved and handed out as the raw ones, also after a cast."""
    shell = trained(model := network(), on("0.*", EMA(decay=0.5)))
    model.double()
    raw = held(model)
    with shell.averaged():
        shown = held(model)
    module = shell.averaged_module()
    assert held(module) == shown
    changed = {name for name, value in shown.items() if value != raw[name]}
    assert changed == {"0.weight", "0.bias"}
    nn.init.zeros_(model[2].bias)
    assert shell.averaged_module()[2].bias.item() == 0.0


def test_a_thread_that_looks_keeps_another_from_training() -> None:
    """While one thread holds the average in the model, an update in another one is refused, and then goes on."""
    shell = sgd_shell(model := Weight(), EMA(decay=0.5))
    run(shell, [-1.0, -1.0])
    swap = shell.averaged()
    thread = Thread(target=swap.__enter__)
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="averaged"):
        run(shell, [-1.0])
    thread = Thread(target=swap.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    run(shell, [-1.0])
    assert model.w.item() == 3.0


def curve(act: Callable[[], Any]) -> list[int]:
    """Return how many bytes are allocated while something is done, from event to event."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        act()
    events = sorted(recorded.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    return [0, *accumulate(event.nbytes() for event in events if event.name() == "[memory]")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_swap_needs_one_copy_of_what_it_covers(dtype: torch.dtype, depth: int) -> None:
    """Entered at any depth, the raw values are kept once and nothing else is, not even for a while; then they go."""
    model = nn.Linear(64, 64).to(dtype)
    shell = sgd_shell(model, EMA(decay=0.5))
    with shell.batch():
        shell.update(model(torch.ones(1, 64, dtype=dtype)).sum())
    contexts = [shell.averaged() for _ in range(depth)]
    entering = curve(lambda: [each.__enter__() for each in contexts])
    leaving = curve(lambda: [each.__exit__(None, None, None) for each in contexts])
    raw = sum(leaf.nbytes for leaf in model.parameters())
    assert (max(entering), entering[-1]) == (raw, raw)
    assert (max(leaving), leaving[-1]) == (0, -raw)


class Remembering(nn.Module):
    """A model that keeps what it computed, deep in its attributes."""

    def __init__(self, extra: Any = None) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0))
        self.kept: dict[str, Any] = {"extra": extra, "seen": []}

    def forward(self, x: float) -> Tensor:
        """Keep a result with its graph, twice."""
        y = self.w * x
        self.kept["seen"].append((y, y))
        return y


def test_a_module_that_keeps_tensors_of_a_graph_is_copied() -> None:
    """However deep they are kept: the copy has their values, one tensor stays one, and no graph."""
    shell = sgd_shell(model := Remembering(), EMA(decay=0.5))
    with shell.batch():
        shell.update(model(3.0))
    (first, second), module = model.kept["seen"][0], shell.averaged_module()
    copied = module.kept["seen"][0]
    assert copied[0] is copied[1]
    assert copied[0] is not first
    assert first is second
    assert (copied[0].item(), copied[0].requires_grad, first.requires_grad) == (3.0, False, True)


def test_what_cannot_be_copied_says_what_to_write() -> None:
    """A module with a generator in it cannot be copied; the error names ``module_factory``, which then works."""
    shell = sgd_shell(model := Remembering(extra=(n for n in range(3))), EMA(decay=0.5))
    with shell.batch():
        shell.update(model(3.0))
    with pytest.raises(TypeError) as caught:
        shell.averaged_module()
    assert "module_factory" in caught.value.__notes__[0]
    assert shell.averaged_module("ema", Remembering).w.item() == model.w.item()
