"""What modules draw, drawn from noise: like torch's own functions, the same in a lane, in one graph and alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from functrain import pure
from functrain.pure.drawing import Drawing, may_draw
from tests.pure.modules import Dropping, normed

X = torch.randn(4, 6, 5, 3, dtype=torch.float64) + 3.0
ELEMENTS: dict[str, Callable[..., Tensor]] = {
    "dropout": F.dropout,
    "torch.dropout": torch.dropout,
    "alpha_dropout": F.alpha_dropout,
}
CHANNELS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], int]] = {
    "dropout1d": (F.dropout1d, (4, 6, 5), 2),
    "dropout1d, no batch": (F.dropout1d, (6, 5), 1),
    "dropout2d": (F.dropout2d, (4, 6, 5, 3), 2),
    "dropout3d": (F.dropout3d, (4, 6, 5, 3, 2), 2),
    "dropout3d, no batch": (F.dropout3d, (6, 5, 3, 2), 1),
    "feature_alpha_dropout": (F.feature_alpha_dropout, (4, 6, 5, 3), 2),
}
RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: torch.rand(x.shape) + torch.rand(*x.shape, dtype=torch.float64),
    "randn": lambda x: torch.randn(*x.shape),
    "bernoulli": lambda x: torch.bernoulli(x.clamp(0.0, 1.0) / 2),
    "Tensor.bernoulli": lambda x: x.bernoulli(0.3),
    "new_empty": lambda x: x.new_empty((*x.shape[:-1], 1)).bernoulli_(0.3).expand(x.shape),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3),
    "uniform_": lambda x: torch.empty_like(x).uniform_(2.0, 4.0),
    "normal_": lambda x: torch.empty_like(x).normal_(2.0, std=4.0),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, tau=0.5),
    "rsample": lambda x: torch.distributions.Normal(x, 2.0).rsample(),
}
MOMENTS = {
    "rand": (1.0, 1 / 6),
    "randn": (0.0, 1.0),
    "bernoulli": (0.5, 0.25),
    "bernoulli_": (0.3, 0.21),
    "Tensor.bernoulli": (0.3, 0.21),
    "uniform_": (3.0, 1 / 3),
    "normal_": (2.0, 16.0),
    "exponential_": (0.5, 0.25),
    "rsample": (3.0, 4.0),
}


def drawn(function: Callable[..., Any], *args: Any, seed: Any = 0, **kwargs: Any) -> Any:
    """Call a function of torch on noise."""
    with Drawing(pure.Noise(seed, 0)):
        return function(*args, **kwargs)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_scales_what_it_keeps(p: float) -> None:
    """Elements are zero at the rate of dropping, and what is kept is divided by the rate of keeping, as in torch."""
    x = torch.ones(1 << 16, dtype=torch.float64)
    out = drawn(F.dropout, x, p)
    assert set(out.unique().tolist()) == set(F.dropout(x, p).unique().tolist())
    assert abs(float((out == 0.0).double().mean()) - p) < 6 * (p * (1 - p)) ** 0.5 / 2**8


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_alpha_dropout_has_the_values_of_torch(p: float) -> None:
    """What a dropped and what a kept one becomes are torch's numbers; mean and variance stay."""
    x = torch.ones(1 << 12, dtype=torch.float64)
    ours, theirs = drawn(F.alpha_dropout, x, p, training=True).unique(), F.alpha_dropout(x, p, training=True).unique()
    assert torch.allclose(ours, theirs, rtol=1e-12)
    normal = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = drawn(F.alpha_dropout, normal, p, training=True)
    assert abs(float(out.mean())) < 0.05
    assert abs(float(out.var()) - 1.0) < 0.1


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_are_dropped_as_a_whole(name: str) -> None:
    """All of a channel shares one decision, and different channels have different ones."""
    function, shape, leading = CHANNELS[name]
    out = drawn(function, torch.ones(shape), 0.5, training=True).flatten(leading)
    assert (out == out[..., :1]).all()
    assert len(out.unique()) == len(function(torch.ones(64, *shape[1:]), 0.5, training=True).unique()) == 2


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_edges_are_those_of_torch(name: str) -> None:
    """A rate of 0 or no training leaves the very tensor, a rate of 1 drops all."""
    function = ELEMENTS[name]
    assert drawn(function, X, 0.0, True) is X
    assert drawn(function, X, 0.5, False) is X
    assert torch.equal(drawn(function, X, 1.0, True), function(X, 1.0, True))


@pytest.mark.parametrize("function", [F.dropout, F.alpha_dropout, F.dropout2d])
def test_in_place_writes_into_its_input(function: Any) -> None:
    """``inplace=True`` returns its input, with the values of the call that does not."""
    x = X.clone()
    out = drawn(function, x, 0.5, training=True, inplace=True)
    assert out is x
    assert torch.equal(x, drawn(function, X, 0.5, training=True))


@pytest.mark.parametrize("name", MOMENTS)
def test_random_functions_have_their_distribution(name: str) -> None:
    """Mean and variance are within 6 standard deviations, shape and dtype are those of torch's own result."""
    x = torch.full((1 << 7, 1 << 7), 3.0, dtype=torch.float64)
    out, like, (mean, variance) = drawn(RANDOM[name], x), RANDOM[name](x), MOMENTS[name]
    assert (out.shape, out.dtype) == (like.shape, like.dtype)
    assert abs(float(out.double().mean()) - mean) < 6 * (variance / x.numel()) ** 0.5
    assert abs(float(out.double().var()) / variance - 1.0) < 6 * (8 / x.numel()) ** 0.5


def test_a_gumbel_softmax_is_a_distribution_over_classes() -> None:
    """Rows sum to one, and classes win at the rates of their softmax."""
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(1 << 14, 3)
    out = drawn(F.gumbel_softmax, logits, hard=True)
    assert torch.equal(out.sum(-1), torch.ones(1 << 14))
    assert torch.allclose(out.mean(0), logits[0].softmax(0), atol=0.02)


LANES: dict[str, Callable[[Tensor], Tensor]] = {
    **RANDOM,
    **{name: lambda x, name=name: ELEMENTS[name](x, 0.5, True) for name in ELEMENTS},
    "dropout2d": lambda x: F.dropout2d(x, inplace=False),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
}


@pytest.mark.parametrize("name", LANES)
def test_a_lane_and_a_graph_draw_what_is_drawn_alone(name: str) -> None:
    """Seeds as lanes, eager and in one graph: bitwise the calls alone; and torch's own stream is not touched."""

    def run(seed: Tensor) -> Tensor:
        return drawn(LANES[name], X, seed=seed)

    before, seeds = torch.get_rng_state(), torch.arange(3)
    alone = torch.stack([run(seed) for seed in seeds])
    torch._dynamo.reset()
    lanes = torch.compile(torch.func.vmap(run), fullgraph=True, backend="eager")
    assert torch.equal(torch.func.vmap(run)(seeds), alone)
    assert torch.allclose(lanes(seeds), alone, rtol=1e-6)
    assert not torch.equal(alone[0], alone[1])
    assert torch.equal(before, torch.get_rng_state())


def test_a_generator_of_the_user_is_used() -> None:
    """Who passes a generator gets its numbers."""
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    for function in (lambda g: torch.rand(3, generator=g), lambda g: torch.zeros(3).normal_(generator=g)):
        assert torch.equal(drawn(function, generators[0]), function(generators[1]))


@pytest.mark.parametrize("function", [torch.rand_like, torch.randn_like])
def test_what_a_compiled_step_would_not_see_is_refused(function: Any) -> None:
    """Two functions of torch pass by every mode under compile: they are refused, with what to write instead."""
    with pytest.raises(ValueError, match=r"write torch.randn?\(x.shape"):
        drawn(function, X)


@pytest.mark.parametrize(
    ("module", "draws"),
    [
        (nn.Linear(1, 1), False),
        (normed(p=0.5), True),
        (normed(p=0.0), False),
        (normed(p=0.5).eval(), False),
        (Dropping(), True),
        (nn.MultiheadAttention(2, 1), False),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (nn.TransformerEncoderLayer(2, 1, 2), True),
    ],
)
def test_a_loss_takes_noise_iff_a_part_may_draw(module: nn.Module, draws: bool) -> None:
    """Parts in training mode with a rate above 0 draw, and those of other authors may."""
    assert may_draw(module) is draws
    assert pure.functional(module, nn.MSELoss()).takes_noise is draws
    assert pure.functional(module, nn.MSELoss(), noise=not draws).takes_noise is not draws


def test_without_noise_a_draw_is_refused() -> None:
    """A loss that draws says that it needs a fourth argument; one that only might draw runs without."""
    module = Dropping()
    loss_fn = pure.functional(module, loss_fn=lambda model, x: model(x).sum())
    with pytest.raises(ValueError, match="fourth argument"):
        loss_fn(pure.parameters(module), {}, torch.ones(2, 3))
    quiet = pure.functional(module.eval(), loss_fn=lambda model, x: model(x).sum(), noise=True)
    assert quiet(pure.parameters(module), {}, torch.ones(2, 3))[0].shape == ()
