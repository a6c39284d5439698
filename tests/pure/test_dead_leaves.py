"""Memory of a donated compiled step: what it overwrites unread has none meanwhile, and has it again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from functrain import Accumulate, ClipNorm, SkipNonFinite, TrainState, _tree, pure
from functrain.pure.dead_leaves import owned
from tests.benchmarks.networks import NETWORKS
from tests.benchmarks.peak import alive, peak
from tests.benchmarks.updates import donated, eager_loop

HOOKS = (ClipNorm(max_norm=1.0), SkipNonFinite(drop=False))


def loss_fn(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return a loss that is the same function of both parameters."""
    return (params["v"] * x).square().sum() + (params["w"] * x).square().sum()


def begun(hooks: Any = HOOKS) -> tuple[Callable[..., Any], TrainState]:
    """Return a step and a first state."""
    init, step, _ = pure.train_step(loss_fn, pure.sgd(0.1), hooks)
    return step, init({"v": torch.ones(3), "w": torch.ones(3)})


def batches() -> list[Tensor]:
    """Return batches, the third of them poisoned."""
    return [torch.full((3,), float("nan") if place == 2 else 0.1 * (place + 1)) for place in range(5)]


def grads(state: TrainState) -> list[Tensor]:
    """Return the gradients of a state."""
    return list(state.grads["main"].values())


def bytes_of(leaves: Sequence[Tensor]) -> list[int]:
    """Return how much memory each tensor has."""
    return [leaf.untyped_storage().nbytes() for leaf in leaves]


def same(left: TrainState, right: TrainState) -> bool:
    """Compare two states bitwise."""
    pairs = zip(_tree.leaves(left), _tree.leaves(right), strict=True)
    return all(torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0)) for a, b in pairs)


class Watching:
    """A backend that runs graphs as they are, and calls something first."""

    def __init__(self, before: Callable[[], None]) -> None:
        self.before = before

    def __call__(self, module: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        """Return the graph with the call in front."""

        def run(*inputs: Any) -> Any:
            self.before()
            return module.forward(*inputs)

        return run


def merging(module: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    """Return the graph with one tensor for equal results, as a compiler may make it."""

    def run(*inputs: Any) -> list[Any]:
        kept: list[Tensor] = []
        for leaf in module.forward(*inputs):
            twin = (each for each in kept if each.dtype == leaf.dtype and torch.equal(each, leaf))
            kept.append(next(twin, leaf))
        return kept

    return run


@pytest.mark.parametrize(
    ("hooks", "held"), [(HOOKS, [0, 0]), ((Accumulate(every=2), *HOOKS), [12, 12])], ids=["dead", "accumulated"]
)
def test_old_gradients_have_memory_only_if_they_are_read(hooks: Any, held: list[int]) -> None:
    """While the graph runs, gradients that it clears have no memory; those of an open window do."""
    step, state = begun(hooks)
    given, seen = state.replace(donated=True), list[list[int]]()
    pure.compiled(step, backend=Watching(lambda: seen.append(bytes_of(grads(given)))))(given, batches()[0])
    assert seen == [held]
    assert bytes_of(grads(given)) == [12, 12]


@pytest.mark.parametrize(
    ("hooks", "backend"),
    [((), merging), (HOOKS, "aot_eager"), (HOOKS, merging), ((Accumulate(every=3), *HOOKS), "aot_eager")],
    ids=["none, merged", "some", "some, merged", "accumulated"],
)
def test_a_released_run_is_bitwise_the_same(hooks: Any, backend: Any) -> None:
    """Through a veto the run is the eager one; the tensors are the same objects, each with memory of its own."""
    step, eager = begun(hooks)
    run, given = pure.compiled(step, backend=backend), _tree.map_leaves(torch.clone, eager).replace(donated=True)
    before = list(map(id, _tree.leaves(given)))
    for batch in batches():
        eager, given = step(eager, batch), run(given, batch)
        assert same(eager, given)
        assert list(map(id, _tree.leaves(given))) == before
        assert len({leaf.untyped_storage().data_ptr() for leaf in _tree.leaves(given)}) == len(before)


def test_lanes_are_released() -> None:
    """Under vmap, too, the old gradients have no memory, and the run is the eager one."""
    step, state = begun()
    lanes = _tree.map_leaves(lambda leaf: torch.stack([leaf, 2 * leaf]), state)
    every = torch.func.vmap(step, in_dims=(0, None))
    given, seen = _tree.map_leaves(torch.clone, lanes).replace(donated=True), list[list[int]]()
    run = pure.compiled(every, backend=Watching(lambda: seen.append(bytes_of(grads(given)))))
    for batch in batches():
        lanes, given = every(lanes, batch), run(given, batch)
        assert same(lanes, given)
    assert seen == [[0, 0]] * len(batches())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_every_leaf_whole(error: type[BaseException]) -> None:
    """If the graph raises, gradients are zeros with memory, all else is as it was, and the run can go on."""
    step, eager = begun()
    failing = [False]

    def fail() -> None:
        if failing[0]:
            raise error

    run, given = pure.compiled(step, backend=Watching(fail)), _tree.map_leaves(torch.clone, eager).replace(donated=True)
    eager, given = step(eager, batches()[0]), run(given, batches()[0])
    failing[0] = True
    with pytest.raises(error):
        run(given, batches()[1])
    zero = _tree.map_leaves(torch.zeros_like, eager.grads)
    assert bytes_of(grads(given)) == [12, 12]
    assert same(eager.replace(grads=zero), given)
    failing[0] = False
    assert same(step(eager, batches()[1]), run(given, batches()[1]))


def test_an_undonated_state_is_left_alone() -> None:
    """A step that was not given its state away reads it, and leaves all of it where and as it was."""
    step, state = begun()
    state = step(state, batches()[0])
    before, places = _tree.map_leaves(torch.clone, state), [leaf.data_ptr() for leaf in _tree.leaves(state)]
    after = pure.compiled(step, backend="aot_eager")(state, batches()[1])
    assert same(state, before)
    assert [leaf.data_ptr() for leaf in _tree.leaves(state)] == places
    assert same(after, step(before, batches()[1]))


def test_owned_wants_memory_that_is_whole_and_unshared() -> None:
    """A result that is an input, a twin, a part of more memory, or laid out otherwise has none of its own."""
    given, twin, part, turned, own = (torch.zeros(2, 2) for _ in range(5))
    found = [given, twin, twin, torch.cat([part, part])[:2], turned.t(), own]
    assert owned([given], found, [torch.empty(2, 2)] * 6) == [False, False, False, False, False, True]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("network", NETWORKS)
def test_peak_memory_is_that_of_a_loop(network: str) -> None:
    """With Inductor the most memory of a donated update is at most 1.1 of the hand-written loop's."""
    most = []
    for build in (eager_loop, donated):
        others = alive()
        update = build(NETWORKS[network])
        for _ in range(4):
            update()
        most.append(peak(update, others))
        del update
    assert most[1] <= 1.1 * most[0]
