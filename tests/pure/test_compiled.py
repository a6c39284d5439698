"""``pure.compiled``: the step itself, whatever state and batch it is given; nothing else is looked at."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from functrain import EMA, Accumulate, ClipNorm, MixedPrecision, PurityError, SkipNonFinite, TrainState, _tree, pure
from functrain.pure import by_kind
from functrain.pure.graph import compiler_of

HOOKS = (Accumulate(every=2), MixedPrecision(precision="float16"), ClipNorm(max_norm=1.0), SkipNonFinite(), EMA())
FEW = (ClipNorm(max_norm=1.0), SkipNonFinite())
quickly = partial(pure.compiled, backend="aot_eager")


def loss_fn(params: dict[str, Tensor], buffers: dict[str, Tensor], batch: dict[str, Any]) -> Tensor:
    """Return a loss that a number in the batch scales."""
    return (params["w"] * batch["x"]).square().sum() * batch.get("factor", 1.0)


def begun(hooks: Any = HOOKS) -> tuple[Any, TrainState]:
    """Return a step and its first state."""
    init, step, _ = pure.train_step(loss_fn, pure.adamw(0.1), hooks)
    return step, init({"w": torch.ones(3)})


def batch_of(place: int, size: int = 3) -> dict[str, Any]:
    """Return a batch; every fourth one is poisoned."""
    return {"x": torch.full((size,), float("nan") if place % 4 == 3 else 0.1 * (place + 1))}


def same(left: TrainState, right: TrainState) -> bool:
    """Compare two states bitwise."""
    pairs = zip(_tree.leaves(left), _tree.leaves(right), strict=True)
    return all(torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0)) for a, b in pairs)


@pytest.mark.parametrize(("hooks", "donated"), [(FEW, False), (HOOKS, True)], ids=["few", "many, donated"])
def test_it_gives_what_the_step_gives(hooks: Any, donated: bool) -> None:
    """Through windows, drops and vetoes the run is bitwise the eager one; a donated state is the same object."""
    step, eager = begun(hooks)
    run, state = quickly(step), _tree.map_leaves(torch.clone, eager).replace(donated=donated)
    for place in range(9):
        before = state
        eager, state = step(eager, batch_of(place)), run(state, batch_of(place))
        assert same(eager, state)
        assert (state is before) is donated


def products(params: Any, buffers: Any, batch: Any) -> torch.Tensor:
    """Return a loss in which each of the two tensors of a batch counts."""
    return (params["w"] * batch[0]).sum() + (params["w"] * batch[1]).square().sum()


def pair_of(place: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of two tensors, both others in each place."""
    return torch.full((3,), 1.0 + place), torch.full((3,), 2.0 - place)


def on_pairs() -> tuple[Any, TrainState]:
    """Return a step that adds two micro-batches up, and its first state."""
    init, step, _ = pure.train_step(products, pure.sgd(0.01), Accumulate(every=2))
    return step, init({"w": torch.ones(3)})


def test_each_tensor_of_a_batch_is_read_at_each_call() -> None:
    """Inputs and targets are those of this call: neither stays the one that the graph was made for."""
    step, eager = on_pairs()
    run, state = quickly(step), eager
    for place in range(3):
        eager, state = step(eager, pair_of(place)), run(state, pair_of(place))
        assert same(eager, state)


def test_one_tensor_at_two_places_of_the_first_batch_only() -> None:
    """A graph made for a batch that holds one tensor twice still reads both places of the next one."""
    step, eager = on_pairs()
    run, state, twice = quickly(step), eager, torch.ones(3)
    for batch in ((twice, twice), pair_of(1), pair_of(2)):
        eager, state = step(eager, batch), run(state, batch)
        assert same(eager, state)


def test_one_tensor_at_two_places_of_the_first_state_only() -> None:
    """A graph made for a state that holds one tensor twice still reads both places of the next one."""
    step, eager = on_pairs()
    run, one = quickly(step), torch.zeros(3)
    run(eager.replace(params={"main": {"w": one}}, grads={"main": {"w": one}}), pair_of(0))
    assert same(run(eager, pair_of(1)), step(eager, pair_of(1)))


def test_any_state_may_come() -> None:
    """After some steps it takes an older state, one with other numbers, and one of another run and structure."""
    step, first = begun(FEW)
    run, later = quickly(step), first
    for place in range(3):
        later = run(later, batch_of(place))
    changed = later.replace(
        hooks=later.hooks | {"clip": later.hooks["clip"] | {"max_norm": torch.tensor(0.01).double()}}
    )
    other = pure.train_step(loss_fn, pure.adamw(0.1), FEW).init({"w": torch.ones(3, dtype=torch.float64)})
    for state in (first, changed, later, other):
        assert same(run(state, batch_of(0)), step(state, batch_of(0)))


def test_shapes_and_numbers_of_a_batch_make_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shape, and another Python number, are other graphs with the right results; too many are refused."""
    monkeypatch.setattr(by_kind, "MOST_GRAPHS", 4)
    step, state = begun(())
    run = pure.compiled(step, backend="eager")
    wide = pure.train_step(loss_fn, pure.adamw(0.1), ()).init({"w": torch.ones(1)})
    for size in (2, 5):
        assert same(run(wide, batch_of(0, size)), step(wide, batch_of(0, size)))
    for factor in (1, 2):
        batch = batch_of(0) | {"factor": float(factor)}
        assert same(run(state, batch), step(state, batch))
    with pytest.raises(RuntimeError, match=r"4 graphs.*make numbers tensors"):
        run(state, batch_of(0) | {"factor": 99.0})


def test_a_donated_state_with_shared_memory() -> None:
    """Leaves of one tensor are taken apart before they are written over."""
    step, state = begun(FEW)
    twice = state.loss
    shared = state.replace(loss=twice, raw_loss=twice, donated=True)
    expected = step(state, batch_of(0))
    assert same(quickly(step)(shared, batch_of(0)), expected)


def test_states_that_are_dropped_are_freed() -> None:
    """It keeps no state alive: of a long run only the latest is held, by the caller."""
    step, state = begun(())
    run = quickly(step)
    state = run(state, batch_of(0))
    gone = weakref.ref(state.params["main"]["w"])
    state = run(state, batch_of(1))
    gc.collect()
    assert gone() is None


def test_lanes_are_compiled_and_donated() -> None:
    """A vmapped step goes the same way: the donated lanes are bitwise the eager ones."""
    step, state = begun(FEW)
    lanes = _tree.map_leaves(lambda leaf: torch.stack([leaf, leaf]), state)
    every = torch.func.vmap(step, in_dims=(0, None))
    run, given = quickly(every), _tree.map_leaves(torch.clone, lanes).replace(donated=True)
    for place in range(5):
        lanes, given = every(lanes, batch_of(place)), run(given, batch_of(place))
        assert same(lanes, given)


def scaled_by(factor: float) -> Any:
    """Return a loss that closes over a number."""
    return lambda params, _buffers, x: (params["w"] * x).sum() * factor


def test_two_steps_do_not_share_a_graph() -> None:
    """Runs that differ in nothing but a constant of their loss keep their own results."""
    for factor in (1.0, 3.0):
        init, step, _ = pure.train_step(scaled_by(factor), pure.sgd(1.0), ())
        after = quickly(step)(init({"w": torch.zeros(1)}), torch.ones(1))
        assert after.params["main"]["w"].item() == -factor


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_l7_inductor_compiles_once() -> None:
    """With Inductor, too, many steps under ``torch.compile`` are one graph: no two leaves that come back are one."""
    torch._dynamo.reset()
    counters.clear()
    step, state = begun(FEW)
    run = torch.compile(step, fullgraph=True)
    for place in range(6):
        state = run(state, batch_of(place))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("options", "donated"), [({}, True), ({"cpp_wrapper": True}, False)], ids=["Python", "C++"])
def test_inductor_gives_what_the_step_gives(options: dict[str, Any], donated: bool) -> None:
    """With Inductor, called from Python or from C++, the run is one graph, and the eager one up to rounding."""
    step, eager = begun(HOOKS)
    seen = list[int]()
    run = pure.compiled(step, backend=counted(seen, options))
    state = _tree.map_leaves(torch.clone, eager).replace(donated=donated)
    for place in range(9):
        eager, state = step(eager, batch_of(place)), run(state, batch_of(place))
        for left, right in zip(_tree.leaves(eager), _tree.leaves(state), strict=True):
            torch.testing.assert_close(left, right, equal_nan=True)
    assert len(seen) == 1


def counted(seen: list[int], options: dict[str, Any]) -> Any:
    """Return Inductor, which takes note of each graph."""

    def compile_counted(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(len(module.graph.nodes))
        return compiler_of(torch.device("cpu"), options=options)(module, inputs)

    return compile_counted


def test_another_layout_is_another_graph() -> None:
    """A batch whose elements lie otherwise in memory is read as it is."""
    init, step, _ = pure.train_step(lambda p, _, x: (p["w"] * x).square().sum(), pure.sgd(0.1), ())
    state, run = init({"w": torch.ones(2, 3)}), quickly(step)
    turned = torch.arange(6.0).reshape(3, 2).t()
    for batch in (turned.contiguous(), turned):
        assert same(run(state, batch), step(state, batch))


def test_inside_another_transform_it_is_the_step() -> None:
    """Under vmap the lanes are those of the step, although a graph for one of them is there."""
    step, state = begun(FEW)
    run, batch = quickly(step), batch_of(0)
    assert same(run(state, batch), step(state, batch))
    lanes = {"x": torch.stack([batch["x"], 2 * batch["x"]])}
    assert same(
        torch.func.vmap(run, in_dims=(None, 0))(state, lanes), torch.func.vmap(step, in_dims=(None, 0))(state, lanes)
    )


def test_a_gradient_that_a_graph_cannot_give_is_refused() -> None:
    """A batch that requires a gradient is refused with what to write, and not cut off in silence."""
    step, state = begun(FEW)
    with pytest.raises(ValueError, match=r"shape \(3,\).*detach.*torch.compile\(step"):
        quickly(step)(state, {"x": torch.ones(3, requires_grad=True)})


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * x.sum().item(),
        lambda x: x * float(x.sum()),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: x.masked_select(x > 0),
        lambda x: x * torch.from_numpy(x.detach().numpy()),
        lambda x: x * x.tolist()[0],
    ],
    ids=["if", "item", "float", "mask", "unique", "select", "numpy", "tolist"],
)
def test_a_loss_that_asks_for_values(asks: Any) -> None:
    """A loss that depends on values in Python is refused in a sentence, and never frozen as it was the first time."""
    init, step, _ = pure.train_step(lambda p, _, x: (p["w"] * asks(x).sum()).sum(), pure.sgd(0.1), ())
    with pytest.raises(RuntimeError, match=r"the (loss|step) (asks|picks|takes)"):
        quickly(step)(init({"w": torch.ones(3)}), torch.ones(3))


def test_a_compiled_model_inside_the_loss() -> None:
    """A model under ``torch.compile`` becomes a part of the graph."""
    model = torch.nn.Linear(3, 1)
    inner = torch.compile(model, backend="eager")
    init, step, _ = pure.train_step(pure.functional(inner, lambda out, _: out.sum()), pure.sgd(0.1), FEW)
    state = init(dict(model.named_parameters()))
    assert same(quickly(step)(state, (torch.ones(2, 3), None)), step(state, (torch.ones(2, 3), None)))


def forgetful(params: Any, buffers: Any, x: Tensor) -> Tensor:
    """Return a loss, and count in a buffer without returning it."""
    buffers["seen"].add_(1)
    return (params["w"] * x).sum()


def test_a_loss_that_writes_into_its_buffers() -> None:
    """What it writes and does not return would be lost: that is found while the graph is made, too."""
    init, step, _ = pure.train_step(forgetful, pure.sgd(0.1), ())
    with pytest.raises(PurityError, match="changes buffer 'seen'"):
        quickly(step)(init({"w": torch.ones(3)}, {"seen": torch.zeros(())}), torch.ones(3))


def test_threads_make_their_graphs_one_after_another() -> None:
    """Several threads may meet a new kind of batch at once: all get the step's result, and no trace stays open."""
    step, state = begun(FEW)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: quickly(step)(state, batch_of(0)), range(4)))
    assert all(same(each, step(state, batch_of(0))) for each in found)
    assert not torch.compiler.is_compiling()


def test_what_is_no_constant_is_refused() -> None:
    """An array of numpy in a batch could change unseen: it is refused with what to write."""
    step, state = begun(FEW)
    with pytest.raises(TypeError, match=r"holds tensors and constants, got ndarray; write torch\.as_tensor"):
        quickly(step)(state, {"x": torch.ones(3).numpy()})
