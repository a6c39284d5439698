"""Parameters that the loss does not use: left alone as by ``torch.optim``, or refused where all are required."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from functrain import EMA, Accumulate, ClipAdaptive, ClipNorm, MixedPrecision, Shell, SkipNonFinite, Stage, hook, pure
from tests.pure.spare import CASES, SPARE, Case, Spare, batch, built, differing, feed, leaves_of, one
from tests.pure.sweeping import different

HOOKS = (Accumulate(every=2), ClipNorm(max_norm=0.1), ClipAdaptive(), SkipNonFinite())
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.3}
OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], pure.Optimizer]] = {
    "sgd": (lambda params: torch.optim.SGD(params, **SGD), pure.sgd(**SGD)),
    "adam": (lambda params: torch.optim.Adam(params, weight_decay=0.3), pure.adam(weight_decay=0.3)),
    "adamw": (lambda params: torch.optim.AdamW(params, weight_decay=0.3), pure.adamw(weight_decay=0.3)),
}


def run_of(case: Case, optimizer: Any, hooks: Any = HOOKS, **options: Any) -> tuple[pure.TrainStep, Any, Any]:
    """Return a pure run of a case, its parameters and buffers."""
    models = built(case)
    run = pure.train_step(pure.functional(models, loss_fn=case.loss), optimizer, hooks, **options)
    return run, pure.parameters(models), pure.buffers(models)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_what_the_loss_does_not_use_stays_as_in_torch(name: str, kind: str) -> None:
    """Momentum and decay leave it alone: after each of six batches the run is that of a shell, bit by bit."""
    case, (optimizer, twin) = CASES[name], OPTIMIZERS[kind]
    models = built(case)
    average = EMA(decay=0.9, model_key=next(iter(models)) if isinstance(models, dict) else "main")
    shell = Shell(models, optimizer(leaves_of(models)), [*HOOKS, average])
    run, params, buffers = run_of(case, twin, [*HOOKS, average])
    state = first = run.init(params, buffers, batch=batch(0))
    for place in range(6):
        feed(shell, models, case, place)
        state = run.step(state, batch(place))
        assert differing(shell, state) == []
    for model, leaf in case.unused:
        assert torch.equal(state.params[model][leaf], first.params[model][leaf])
    assert int(state.clock.step) == 3


@pytest.mark.parametrize("name", CASES)
def test_it_has_no_gradient_no_owner_and_no_optimizer_state(name: str) -> None:
    """Left out of gradients, owners and averages are exactly the parameters that the loss does not use."""
    case = CASES[name]
    run, params, buffers = run_of(case, pure.adamw(1e-2))
    state = run.init(params, buffers, batch=batch(0))
    wanted = {(model, leaf) for model, held in state.params.items() for leaf in held} - case.unused
    assert {(model, leaf) for model, held in state.grads.items() for leaf in held} == wanted
    assert set(state.owners.table["main"]) == wanted
    assert {(model, leaf) for model, held in state.opt["main"]["exp_avg"].items() for leaf in held} == wanted


def test_without_an_example_batch_it_is_decayed() -> None:
    """Nothing is known without a batch: its gradient is zero, and decay moves it as everything else."""
    run, params, buffers = run_of(CASES["plain"], pure.adamw(1e-2, weight_decay=0.3), [])
    state = run.step(run.init(params, buffers), batch(0))
    assert torch.allclose(state.params["main"]["spare.weight"], params["spare.weight"] * (1 - 0.003))


def test_what_only_a_hook_uses_is_trained() -> None:
    """A penalty that a hook adds to the loss gives a gradient like the loss itself."""

    @hook(stages={Stage.DO_BACKWARD})
    def penalty(state: Any, stage: Any, will_skip: Any) -> Any:
        return state, not will_skip, state.loss + state.params["main"]["spare.weight"].square().sum()

    run, params, buffers = run_of(CASES["plain"], pure.sgd(0.1), [penalty])
    assert "spare.weight" in run.init(params, buffers, batch=batch(0)).grads["main"]
    assert "spare.bias" not in run.init(params, buffers, batch=batch(0)).grads["main"]


def test_what_flows_back_undefined_is_unused() -> None:
    """A function of the user that answers no gradient for a parameter uses it as little as torch says."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(a: Tensor, b: Tensor) -> Tensor:
            return a + b

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004 - as torch calls it
            return grads[0], None

    run = pure.train_step(lambda params, _, x: Half.apply(params["a"] * x, params["b"]), pure.sgd(0.1), [])
    state = run.init({"a": torch.ones(()), "b": torch.ones(())}, batch=torch.ones(()))
    assert set(state.grads["main"]) == {"a"}


def test_the_example_batch_leaves_no_trace() -> None:
    """Where all is used, the state is that without a batch; the loss ran once, and nothing passed in has changed."""
    calls: list[Tensor] = []
    models = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = [leaf.clone() for leaf in models.state_dict().values()]
    inner = pure.functional(models, loss_fn=one)

    def loss_fn(params: Any, buffers: Any, x: Any) -> Any:
        calls.append(x)
        return inner(params, buffers, x)

    run = pure.train_step(loss_fn, pure.adamw(), [*HOOKS, EMA()])
    start = (pure.parameters(models), pure.buffers(models), 3)
    state = run.init(*start, batch=batch(0))
    assert len(calls) == 1
    assert different(state, run.init(*start), 0.0) == []
    assert all(map(torch.equal, before, models.state_dict().values()))
    assert all(leaf.grad is None for leaf in models.parameters())


def test_the_loss_is_run_as_in_a_step() -> None:
    """Its noise is that of the run's first batch, and autocast is the pipeline's."""
    seen: list[tuple[Tensor, bool]] = []

    def loss_fn(params: Any, buffers: Any, x: Any, rng: pure.Noise) -> Tensor:
        seen.append((rng.uniform((3,)), torch.is_autocast_enabled("cpu")))
        return (params["w"] * x).sum()

    run = pure.train_step(loss_fn, pure.sgd(0.1), MixedPrecision(precision="bfloat16"))
    run.step(run.init({"w": torch.ones(3)}, seed=5, batch=torch.ones(3)), torch.ones(3))
    assert len(seen) == 2
    assert torch.equal(seen[0][0], seen[1][0])
    assert seen[0][1] is seen[1][1] is True


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_example_tells_the_same(broken: float) -> None:
    """What is used does not depend on values: a batch of NaN, whose loss every hook rejects, will do."""
    run, params, buffers = run_of(CASES["plain"], pure.sgd(0.1), [SkipNonFinite()])
    state = run.init(params, buffers, batch=batch(0) * broken)
    assert {("main", name) for name in params.keys() - state.grads["main"].keys()} == SPARE


def test_all_parameters_can_be_required() -> None:
    """Each unused parameter is named as source text, with the reason and the remedies; frozen ones are no matter."""
    run, params, buffers = run_of(CASES["tied"], pure.sgd(0.1), require_all_parameters=True)
    with pytest.raises(ValueError, match="not even decayed") as caught:
        run.init(params, buffers, batch=batch(0))
    for name in ("spare.weight", "spare.bias", "again.bias"):
        assert f'params["main"]["{name}"]' in str(caught.value)
    assert "layer" not in str(caught.value)
    models = built(CASES["plain"])
    models.spare.requires_grad_(requires_grad=False)
    run = pure.train_step(pure.functional(models, loss_fn=one), pure.sgd(0.1), [], require_all_parameters=True)
    state = run.init(pure.parameters(models), batch=batch(0))
    assert set(state.grads["main"]) == {"layer.weight", "layer.bias"}


def test_requiring_all_needs_an_example_batch() -> None:
    """Without a batch nobody knows what the loss uses, and the error says what to write."""
    run, params, buffers = run_of(CASES["plain"], pure.sgd(0.1), require_all_parameters=True)
    with pytest.raises(ValueError, match=r"init\(params, buffers, batch=batch\)"):
        run.init(params, buffers)


def test_a_loss_without_parameters_is_refused() -> None:
    """A loss that uses none of the parameters would train nothing."""
    run = pure.train_step(lambda _, __, x: x.sum(), pure.sgd(0.1), [])
    with pytest.raises(ValueError, match="uses none of the parameters"):
        run.init({"w": torch.ones(1)}, batch=torch.ones(1))


def test_lanes_leave_it_alone_too() -> None:
    """A sweep takes ``partial(init, params, batch=batch)``: each lane is the run of the lane alone."""
    run, params, buffers = run_of(CASES["plain"], pure.sgd(0.1, weight_decay=0.3))
    init = partial(run.init, params, buffers, batch=batch(0))
    fed, over = [batch(place) for place in range(4)], {"weight_decay": [0.1, 0.3]}
    table = pure.sweep(init, run.step, over=over, batches=fed, progress=False, compile=False)
    state = init()
    for each in fed:
        state = run.step(state, each)
    assert different(table.state(1), state, 1e-6) == []
    assert all(torch.equal(table.state(lane).params["main"]["spare.weight"], params["spare.weight"]) for lane in (0, 1))


@pytest.mark.slow
def test_a_step_without_it_is_one_graph() -> None:
    """A compiled step serves all batches in one graph, and gives the bits of the eager one."""
    run = pure.train_step(lambda params, _, x: (params["w"] * x).square(), pure.sgd(**SGD), [])
    counter = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(run.step, fullgraph=True, backend=counter)
    eager = traced = run.init({"w": torch.ones(()), "idle": torch.ones(())}, batch=torch.ones(()))
    for value in (1.0, 2.0, float("nan")):
        eager, traced = run.step(eager, torch.tensor(value)), compiled(traced, torch.tensor(value))
    assert counter.frame_count == 1
    assert different(eager, traced, 0.0) == []
    assert float(traced.params["main"]["idle"]) == 1.0


def test_init_may_be_part_of_what_is_differentiated() -> None:
    """A gradient flows to the first weights through an ``init`` that looks at a batch; what is unused gets none."""
    run = pure.train_step(lambda params, _, x: (params["w"] * x) ** 2, pure.sgd(0.1), [], differentiable=True)

    def last(start: dict[str, Tensor]) -> Tensor:
        state = run.step(run.init(start, batch=torch.ones(())), torch.ones(()))
        return state.params["main"]["w"] + 0.0 * state.params["main"]["idle"]

    found = torch.func.grad(last)({"w": torch.ones(()), "idle": torch.ones(())})
    assert torch.allclose(found["w"], torch.tensor(1 - 0.1 * 2))
    assert float(found["idle"]) == 0.0


def test_spare_is_what_it_says() -> None:
    """Torch agrees on what the model does not use."""
    model = Spare()
    one(model, batch(0)).backward()
    assert {("main", name) for name, leaf in model.named_parameters() if leaf.grad is None} == SPARE
