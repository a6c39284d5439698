"""Cases b07 to b10 and b14: which gradients count for a norm, how often, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from functrain import (
    Accumulate,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    ClipZScore,
    MixedPrecision,
    Shell,
    SkipSpikes,
    Stage,
    TrainState,
    observe,
)
from functrain._gradients import total_norm
from functrain._owners import Owners
from functrain.hooks import FixedLimit
from tests.scalars import Weight, applied, run, sgd_shell, step

INF = float("inf")
NUMBERS = st.integers(-50, 50).map(float)


class Pair(nn.Module):
    """Two scalar weights, one of them listed under two names if tied."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        if tied:
            self.alias = self.a

    def forward(self, slopes: Any) -> Tensor:
        """Return a loss whose gradients are the slopes; a tied weight takes half of its own through each name."""
        other = getattr(self, "alias", self.a)
        return self.a * (slopes[0] / 2) + other * (slopes[0] / 2) + self.b * slopes[1]


@pytest.mark.parametrize("batches", [1, 3])
def test_b07_a_consumed_generator_of_parameters_hides_nothing(batches: int) -> None:
    """Parameters that reached the optimizer through a generator are clipped at every step."""
    model = Pair()
    parameters = model.parameters()
    shell = Shell(model, SGD(parameters, lr=1.0), ClipNorm(max_norm=1.0))
    assert list(parameters) == []
    for _ in range(batches):
        step(shell, (3, 4), model=model)
    assert [-model.a.item(), -model.b.item()] == pytest.approx([0.6 * batches, 0.8 * batches])


@pytest.mark.parametrize("what", ["models", "optimizers", "hooks"])
def test_b07_a_generator_is_refused_where_a_sequence_belongs(what: str) -> None:
    """What could be consumed unseen is refused when the shell is made."""
    model = Pair()
    given: dict[str, Any] = {
        "models": [model],
        "optimizers": [SGD(model.parameters(), lr=1.0)],
        "hooks": [ClipNorm(max_norm=1.0)],
    }
    given[what] = iter(given[what])
    with pytest.raises(TypeError, match=r"iterator|generator"):
        Shell(**given)


ALL_CLIPS = [
    ClipNorm(max_norm=1.0),
    ClipNorm(max_norm=1.0, norm_type=INF),
    ClipValue(clip_value=1.0),
    ClipAdaptive(),
    ClipPercentile(),
    ClipZScore(warmup=1),
]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("clip", ALL_CLIPS, ids=lambda clip: type(clip).__name__)
def test_b08_no_gradients_at_all_are_no_error(clip: Any, precision: str) -> None:
    """Where no parameter has a gradient the norm is 0, no weight moves and no optimizer state is made."""
    model, elsewhere = Weight(2.0), torch.ones((), requires_grad=True)
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
    shell = Shell(model, optimizer, [MixedPrecision(precision=precision), clip])
    with shell.batch():
        shell.update(elsewhere * 3.0)
    assert model.w.item() == 2.0
    assert optimizer.state_dict()["state"] == {}
    assert float(shell.state.metrics.get("grad_norm", 0.0)) == 0.0
    assert shell.state.clock.skipped == 0


def test_b08_the_other_optimizer_steps() -> None:
    """An optimizer whose parameters have no gradient does nothing; the other one is clipped and steps."""
    a, b = Weight(2.0), Weight()
    optimizers = {"a": SGD(a.parameters(), lr=1.0, weight_decay=0.1), "b": SGD(b.parameters(), lr=1.0)}
    shell = Shell({"a": a, "b": b}, optimizers, ClipNorm(max_norm=1.0))
    with shell.batch():
        shell.update(b(4))
    assert (a.w.item(), b.w.item()) == pytest.approx((2.0, -1.0))
    assert shell.state.metrics["grad_norm"].item() == 4.0


def complex_step(shell: Shell, model: Weight, gradient: list[complex]) -> None:
    """Run one micro-batch whose gradient is the complex one given."""
    with shell.batch():
        shell.update((model.w * torch.tensor(gradient).conj()).real.sum())


@given(gradient=st.lists(st.builds(complex, NUMBERS, NUMBERS), min_size=1, max_size=3), strict=st.booleans())
def test_b09_any_complex_gradient_is_clipped_by_magnitude(gradient: list[complex], strict: bool) -> None:
    """The norm of complex gradients is that of their magnitudes, and directions stay."""
    model = Weight([0j] * len(gradient), dtype=torch.complex64)
    shell = sgd_shell(model, ClipNorm(max_norm=1.0), strict=strict)
    complex_step(shell, model, gradient)
    norm = sum(abs(each) ** 2 for each in gradient) ** 0.5
    right = [each * min(1.0, 1.0 / (norm + 1e-6)) for each in gradient]
    assert applied(shell) == pytest.approx(right, abs=1e-6)


def test_b09_a_complex_gradient() -> None:
    """3+4j clipped to a norm of 1 is .6+.8j; the norm reported is 5."""
    model = Weight([0j], dtype=torch.complex64)
    complex_step(shell := sgd_shell(model, ClipNorm(max_norm=1.0)), model, [3 + 4j])
    assert applied(shell) == pytest.approx([0.6 + 0.8j])
    assert shell.state.metrics["grad_norm"].item() == 5.0


def test_b09_values_of_complex_gradients_are_refused_at_setup() -> None:
    """Complex numbers have no order, so clipping by value says so before anything runs."""
    with pytest.raises(ValueError, match=r'state.params\["main"\]\["w"\] is complex'):
        sgd_shell(Weight([0j], dtype=torch.complex64), ClipValue(clip_value=1.0))


@pytest.mark.parametrize("clip", [ClipNorm(max_norm=1.0), ClipPercentile(), ClipZScore()], ids=lambda clip: clip.name)
def test_b10_the_reported_norm_is_the_one_before_clipping(clip: Any) -> None:
    """(3, 4) is reported as 5 to later hooks and to whoever reads the metrics afterwards."""
    seen: list[float] = []
    look = observe("look", lambda state, _: seen.append(state.metrics["grad_norm"].item()), stages=AFTERWARDS)
    shell = sgd_shell(Weight([0.0, 0.0]), clip + look)
    run(shell, [[3.0, 4.0]])
    assert [*seen, shell.state.metrics["grad_norm"].item()] == [5.0] * 3


AFTERWARDS = (Stage.DO_OPTIMIZER_STEP, Stage.AFTER_OPTIMIZER_STEP)


@given(gradient=st.tuples(NUMBERS, NUMBERS), limit=st.sampled_from([0.0, 1.0, 20.0, INF]))
def test_b10_a_spike_hook_behind_a_clip_judges_the_true_norm(gradient: tuple[float, float], limit: float) -> None:
    """Whatever the limit, a step is vetoed iff the norm before clipping is too large."""
    hooks = ClipNorm(max_norm=limit) + SkipSpikes(by=FixedLimit(limit=10.0), of="grad_norm")
    shell = sgd_shell(Weight([0.0, 0.0]), hooks)
    run(shell, [list(gradient)])
    norm = torch.tensor(gradient).norm().item()
    assert shell.state.metrics["grad_norm"].item() == pytest.approx(norm)
    assert shell.state.clock.step == int(norm <= 10.0)


@pytest.mark.parametrize("listed_twice", [False, True])
def test_b14_a_tied_parameter_counts_once(listed_twice: bool) -> None:
    """A weight under two names with gradient 3 beside one of 4: norm 5, and each is scaled once."""
    model = Pair(tied=True)
    shell = Shell(*tied_parts(model, listed_twice), ClipNorm(max_norm=1.0))
    step(shell, (3, 4), model=model)
    assert shell.state.metrics["grad_norm"].item() == 5.0
    assert [-model.a.item(), -model.b.item()] == pytest.approx([0.6, 0.8])


def tied_parts(model: Pair, listed_twice: bool) -> tuple[Any, Optimizer]:
    """Return models and optimizer: the model alone, or also a second model that is a part of it."""
    optimizer = SGD(model.parameters(), lr=1.0)
    part = nn.ParameterList([model.a])
    return ({"main": model, "part": part} if listed_twice else model), optimizer


@given(
    slopes=st.tuples(NUMBERS, NUMBERS),
    limit=st.sampled_from([0.5, 1.0, 30.0]),
    fp16=st.booleans(),
    strict=st.booleans(),
)
def test_b14_any_tied_gradient_is_scaled_once(
    slopes: tuple[float, float], limit: float, fp16: bool, strict: bool
) -> None:
    """Tied or not, clipped or not, scaled by a loss scale or not: the same update."""
    found: list[list[float]] = []
    for tied in (False, True):
        model = Pair(tied)
        hooks = [MixedPrecision(precision="fp16" if fp16 else "fp32"), ClipNorm(max_norm=limit), Accumulate(every=1)]
        step(Shell(model, SGD(model.parameters(), lr=1.0), hooks, strict=strict), slopes, model=model)
        found.append([model.a.item(), model.b.item()])
    assert found[0] == found[1]


@given(st.integers(20, 38), st.sampled_from([INF, -INF, float("nan")]))
def test_an_overflowed_optimizer_does_not_spoil_a_norm_whose_squares_overflow(exponent: int, bad: float) -> None:
    """Where squares overflow, too, the norm is that of the optimizers whose gradients are finite."""
    owners = Owners({"a": [("main", "a")], "b": [("main", "b")]})
    grads = {"main": {"a": torch.full((4,), 10.0**exponent), "b": torch.tensor([bad])}}
    scaler = {"scale": 1.0, "growth_tracker": 0, "found_inf": {"b": True}}
    norm = total_norm(TrainState(params=grads, grads=grads, owners=owners, scaler=scaler))
    assert norm.item() == pytest.approx(2 * 10.0**exponent)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_norm_is_published_in_single_precision(dtype: torch.dtype) -> None:
    """Whatever the gradients are, and whether or not the metric was there before."""
    hook = ClipNorm(max_norm=1.0)
    state = TrainState(grads={"main": {"w": torch.ones(4, dtype=dtype)}}, hooks={"clip": {"max_norm": 1.0}})
    for metrics in ({}, {"grad_norm": torch.tensor(float("nan"))}):
        found = hook(state.replace(metrics=metrics), Stage.DO_OPTIMIZER_STEP, False).state.metrics["grad_norm"]
        assert (found.dtype, found.item()) == (torch.float32, 2.0)


def test_gradients_within_the_limit_are_handed_on() -> None:
    """Nothing is copied where nothing is clipped."""
    state = TrainState(grads={"main": {"w": torch.ones(4)}}, hooks={"clip": {"max_norm": 2.5}})
    assert ClipNorm(max_norm=2.5)(state, Stage.DO_OPTIMIZER_STEP, False).state.grads is state.grads


@pytest.mark.parametrize("limit", [1e5, 1e300, INF])
def test_a_limit_that_a_dtype_cannot_hold_clamps_nothing(limit: float) -> None:
    """Half precision gradients pass below a limit beyond their range."""
    grad = torch.tensor([65504.0, -65504.0, 1.0], dtype=torch.float16)
    state = TrainState(grads={"main": {"w": grad}}, hooks={"clip_value": {"clip_value": limit}})
    after = ClipValue(clip_value=limit)(state, Stage.DO_OPTIMIZER_STEP, False).state
    assert torch.equal(after.grads["main"]["w"], grad)
