"""Optimizers from elsewhere: a bare pair of functions, TorchOpt's own package, and what is no optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torchopt
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from functrain import ClipNorm, SkipNonFinite, StructureError, _tree, pure
from functrain.pure.pairs import as_optimizers
from tests.pure.optimizing import drawn, furthest, gradients, pure_path

STARTS = {name: torch.randn(shape, dtype=torch.float64) for name, shape in (("w", (3,)), ("a", (2, 2)))}
LOSSES = torch.tensor([1.0, float("nan"), -2.0, 0.5], dtype=torch.float64)
PACKAGED: dict[str, tuple[Callable[[], Any], Any]] = {
    "sgd": (lambda: torchopt.sgd(0.1), pure.sgd(0.1)),
    "momentum": (lambda: torchopt.sgd(0.1, momentum=0.9), pure.sgd(0.1, momentum=0.9)),
    "nesterov": (
        lambda: torchopt.sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        pure.sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam": (lambda: torchopt.adam(0.1, weight_decay=0.01), pure.adam(0.1, weight_decay=0.01)),
    "adamw": (lambda: torchopt.adamw(0.1, weight_decay=0.01), pure.adamw(0.1, weight_decay=0.01)),
    "chain": (lambda: torchopt.combine.chain(torchopt.clip.clip_grad_norm(1e9), torchopt.sgd(0.1)), pure.sgd(0.1)),
    "schedule": (
        lambda: torchopt.sgd(torchopt.schedule.linear_schedule(0.1, 0.0, 10)),
        pure.sgd(lambda step: 0.1 * (1.0 - step.double() / 10).clamp(min=0.0)),
    ),
}


def loss_fn(params: dict[str, Tensor], buffers: dict[str, Tensor], slope: Tensor) -> Tensor:
    """Return a loss whose gradient is the slope times the weights."""
    return slope * (params["w"].square().sum() + params["a"].square().sum()) / 2


def writing() -> tuple[Any, Any]:
    """Return momentum as somebody would write it who is used to writing in place."""

    def init(params: Any) -> Any:
        return {"main": {name: torch.zeros_like(leaf) for name, leaf in params["main"].items()}}

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        for name, leaf in grads["main"].items():
            state["main"][name].mul_(0.9).add_(leaf)
            leaf.copy_(state["main"][name]).mul_(-0.1)
            params["main"][name].zero_()
        return grads, state

    return init, update


@pytest.mark.parametrize("name", PACKAGED)
def test_torchopt_takes_the_steps_of_the_pure_ones(name: str) -> None:
    """Each optimizer of the package goes where its counterpart goes; some of them compute their scales in single."""
    theirs, ours = PACKAGED[name]
    bound = 1e-5 if name in {"adam", "adamw", "schedule"} else 1e-12
    start, grads = drawn(0, torch.float64), gradients(20, torch.float64)
    adapted = as_optimizers(theirs())["main"][0]
    params, state = start, adapted.init(start)
    for each, mine in zip(grads, pure_path(ours, start, grads), strict=True):
        params, state = adapted.step(each, state, params)
        assert furthest(params, mine) < bound


@pytest.mark.parametrize("name", [*PACKAGED, "writing"])
def test_nothing_that_goes_in_is_written_into(name: str) -> None:
    """Gradients, state and parameters keep their contents, whatever the function does by default."""
    given = writing() if name == "writing" else PACKAGED[name][0]()
    adapted = as_optimizers(given)["main"][0]
    params, grads = drawn(0, torch.float64), drawn(1, torch.float64)
    state = adapted.step(grads, adapted.init(params), params)[1]
    before = [leaf.clone() for leaf in _tree.leaves((grads, state, params))]
    first = adapted.step(grads, state, params)
    assert all(map(torch.equal, before, _tree.leaves((grads, state, params))))
    assert all(map(torch.equal, _tree.leaves(first), _tree.leaves(adapted.step(grads, state, params))))


@pytest.mark.parametrize("name", [*PACKAGED, "writing"])
def test_a_vetoed_step_changes_nothing_of_it(name: str) -> None:
    """In a run with a NaN in between, the state is that of the run without it."""
    given = writing() if name == "writing" else PACKAGED[name][0]()
    init, step, _ = pure.train_step(loss_fn, given, [SkipNonFinite(drop=False), ClipNorm(max_norm=5.0)])
    with_nan = without = init(STARTS)
    for slope in LOSSES:
        with_nan = step(with_nan, slope)
        without = without if slope.isnan() else step(without, slope)
    pairs = zip(_tree.leaves((with_nan.params, with_nan.opt)), _tree.leaves((without.params, without.opt)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert int(with_nan.clock.step) == 3


def stacked(trees: Any) -> Any:
    """Return trees as lanes of one."""
    return _tree.map_leaves(lambda *leaves: torch.stack(leaves), *trees)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # TorchOpt's Adam calls what vmap has no rule for
@pytest.mark.parametrize("name", [each for each in (*PACKAGED, "writing") if each != "chain"])
def test_lanes_are_runs_alone(name: str) -> None:
    """Two steps of lanes with other weights and gradients equal those of each lane alone."""
    given = writing() if name == "writing" else PACKAGED[name][0]()
    adapted = as_optimizers(given)["main"][0]
    lanes = [(drawn(seed + 9, torch.float64), drawn(seed, torch.float64)) for seed in range(3)]

    def two(grads: Any, params: Any) -> Any:
        params, state = adapted.step(grads, adapted.init(params), params)
        return adapted.step(grads, state, params)

    mapped = torch.func.vmap(two)(*map(stacked, zip(*lanes, strict=True)))
    for place, lane in enumerate(lanes):
        pairs = zip(_tree.leaves(mapped), _tree.leaves(two(*lane)), strict=True)
        assert all(torch.allclose(each[place], leaf, rtol=1e-12, atol=1e-12) for each, leaf in pairs)


def test_what_cannot_run_in_lanes_says_so() -> None:
    """TorchOpt's clipping reads the norm as a Python number: the sentence names the optimizer, not the loss."""
    adapted, params = as_optimizers(PACKAGED["chain"][0]())["main"][0], stacked([drawn(0, torch.float64)] * 2)
    with pytest.raises(RuntimeError, match=r"^the optimizer asks for the value of a tensor"):
        torch.func.vmap(lambda each: adapted.step(each, adapted.init(each), each))(params)


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "writing"])
def test_a_step_is_one_graph(name: str) -> None:
    """What dynamo can trace of it (TorchOpt's Adam raises a float to a tensor, which it cannot) gives the same bits."""
    given = writing() if name == "writing" else PACKAGED[name][0]()
    adapted, params = as_optimizers(given)["main"][0], drawn(0, torch.float64)
    torch._dynamo.reset()
    step = torch.compile(adapted.step, fullgraph=True, backend="eager")
    eager = traced = (params, adapted.init(params))
    for grads in gradients(3, torch.float64):
        eager, traced = adapted.step(grads, eager[1], eager[0]), step(grads, traced[1], traced[0])
        assert all(map(torch.equal, _tree.leaves(eager), _tree.leaves(traced)))


class Named(NamedTuple):
    """A pair under its names, with parameters by name only."""

    init: Any
    update: Any


@given(slope=st.floats(-2.0, 2.0))
def test_every_form_of_a_pair_is_taken(slope: float) -> None:
    """A tuple, an object, parameters by place or by name: all take the same step."""

    def by_place(grads: Any, state: Any, params: Any) -> Any:
        return _tree.map_leaves(lambda g, p: -0.1 * (g + p), grads, params), state

    def by_name(grads: Any, state: Any, *, params: Any) -> Any:
        return by_place(grads, state, params)

    results = []
    for pair in ((nothing, by_place), Named(nothing, by_place), Named(nothing, by_name), (nothing, by_name)):
        start, step, _ = pure.train_step(loss_fn, pair, [])
        results.append(step(start(STARTS), torch.tensor(slope, dtype=torch.float64)).params)
    wanted = {name: leaf - 0.1 * (slope * leaf + leaf) for name, leaf in STARTS.items()}
    assert all(torch.allclose(each["main"][name], wanted[name]) for each in results for name in wanted)


def nothing(params: Any) -> dict[str, Any]:
    """Return the state of an optimizer that keeps none."""
    return {}


def returning(result: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return a pair whose update gives what a function of gradients and state gives."""
    return nothing, lambda grads, state, params: result(grads, state)  # noqa: ARG005 - as it is called


def test_an_update_in_double_leaves_weights_in_single() -> None:
    """A number in double among the updates does not widen the parameters."""
    pair = returning(lambda grads, state: (_tree.map_leaves(torch.Tensor.double, grads), state))
    weights = {name: leaf.float() for name, leaf in STARTS.items()}
    init, step, _ = pure.train_step(loss_fn, pair, [])
    state = step(init(weights), torch.ones(()))
    assert state.params["main"]["w"].dtype is torch.float32
    assert torch.equal(state.params["main"]["w"], 2.0 * weights["w"])


def test_a_state_that_grows_is_refused() -> None:
    """What an update adds to its state could not be taken back by a veto: both structures are shown."""
    init, step, _ = pure.train_step(loss_fn, returning(lambda grads, _: (grads, {"momentum": grads})), [])
    with pytest.raises(StructureError, match=r"init\(params\) must build all of it.*momentum"):
        step(init(STARTS), torch.ones((), dtype=torch.float64))


UPDATES: tuple[Any, ...] = (None, {"main": {"w": torch.ones(3)}}, torch.ones(3), {"main": {"w": 1, "a": torch.ones(2)}})


@pytest.mark.parametrize("updates", UPDATES)
def test_updates_of_another_shape_are_refused(updates: Any) -> None:
    """Updates that lack a parameter, would be broadcast, or are no mapping, are refused with what is expected."""
    init, step, _ = pure.train_step(loss_fn, returning(lambda _, state: (updates, state)), [])
    with pytest.raises(StructureError, match=r"\(updates, state\), updates of the names and shapes of grads"):
        step(init(STARTS), torch.ones((), dtype=torch.float64))


WRONG: tuple[tuple[Any, str], ...] = (
    (torch.optim.SGD([torch.ones(1)], lr=0.1), "got SGD; torch.optim optimizers belong into functrain.Shell"),
    (torch.optim.AdamW, "got AdamW"),
    (pure.sgd, "got function"),
    (None, "got NoneType"),
    ((torch.ones, torch.ones, torch.ones), "got tuple"),
    ([pure.sgd(0.1)], "got list"),
    ({"main": pure.sgd(0.1)}, r"optimizer 'main' needs a selector.*got Optimizer"),
    ({"main": torchopt.sgd(0.1)}, r"optimizer 'main' needs a selector.*got GradientTransformation"),
    ({"main": torch.optim.SGD([torch.ones(1)], lr=0.1)}, r"optimizer 'main' needs a selector.*got SGD"),
    ({"main": (torch.optim.SGD, "*")}, "got SGD; torch.optim optimizers belong into functrain.Shell"),
)


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_is_no_optimizer_is_refused(given: Any, message: str) -> None:
    """Torch's own, a class, a forgotten call, a list, a mapping without selectors: what it is and what to write."""
    with pytest.raises(TypeError, match=message):
        pure.train_step(loss_fn, given, [])
