"""Modules that draw: attention and dropout in lanes, in one graph and alone, and what a seed decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from functrain import Accumulate, _tree, pure
from functrain.pure.attention import attention
from tests.pure.modules import Dropping, normed

X = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))


def encoder() -> nn.Module:
    """Return a layer of a transformer, with dropout at five places."""
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5, batch_first=True)


def weighing() -> nn.Module:
    """Return attention that computes its weights."""
    torch.manual_seed(0)
    return nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)


def perceptron() -> nn.Module:
    """Return a perceptron that drops elements by a part and by the function."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5), Dropping())


def loss_of(model: Any, x: Tensor) -> Tensor:
    """Return a loss of whatever a model returns."""
    out = model(x, x, x)[0] if isinstance(model, nn.MultiheadAttention) else model(x)
    return out.square().mean()


@pytest.mark.parametrize("build", [encoder, weighing, perceptron])
def test_gradients_of_a_seed_are_the_same_in_every_form(build: Any) -> None:
    """Lanes of seeds, eager and in one graph, equal the seeds alone; each seed drops something else."""
    module = build()
    loss_fn, params = pure.functional(module, loss_fn=loss_of), _tree.map_leaves(Tensor.detach, pure.parameters(module))

    def gradient(seed: Tensor) -> Any:
        return torch.func.grad(lambda held: loss_fn(held, {}, X, pure.Noise(seed, 0))[0])(params)

    seeds = torch.arange(2)
    alone = [_tree.leaves(gradient(seed)) for seed in seeds]
    torch._dynamo.reset()
    traced = torch.compile(torch.func.vmap(gradient), fullgraph=True, backend="eager")
    for lanes in (torch.func.vmap(gradient)(seeds), traced(seeds)):
        for place in range(2):
            pairs = zip(_tree.leaves(lanes), alone[place], strict=True)
            assert all(torch.allclose(leaf[place], own, rtol=1e-5, atol=1e-6) for leaf, own in pairs)
    assert not torch.equal(alone[0][0], alone[1][0])


def test_in_eval_mode_the_loss_is_that_of_the_module() -> None:
    """Nothing is dropped, and the module's own output comes out."""
    module = encoder().eval()
    loss, _ = pure.functional(module, loss_fn=loss_of, noise=True)(pure.parameters(module), {}, X)
    assert torch.allclose(loss, loss_of(module, X), rtol=1e-6)


def test_a_sweep_over_seeds_is_the_loop_over_seeds() -> None:
    """Five micro-batches with dropout, normalization and windows: a lane equals the run of its seed alone."""
    module = normed(torch.float64, p=0.5)
    loss_fn = pure.functional(module, nn.MSELoss())
    init, step, _ = pure.train_step(loss_fn, pure.sgd(0.1, momentum=0.9), Accumulate(every=2))
    batch = (torch.randn(6, 3).double(), torch.randn(6, 1).double())
    alone = [init(pure.parameters(module), pure.buffers(module), seed=seed) for seed in range(3)]
    lanes = _tree.map_leaves(lambda *leaves: torch.stack(leaves), *alone)
    for _ in range(5):
        alone, lanes = [step(state, batch) for state in alone], torch.func.vmap(step, (0, None))(lanes, batch)
    for place, state in enumerate(alone):
        for lane, leaf in zip(_tree.leaves(lanes.params), _tree.leaves(state.params), strict=True):
            assert torch.allclose(lane[place], leaf, rtol=1e-12, atol=1e-12)
    assert len({float(state.loss) for state in alone}) == 3


def test_each_micro_batch_draws_anew_and_a_repeated_run_draws_the_same() -> None:
    """Two steps on the same batch with the same weights have other losses; the run can be repeated bitwise."""
    module = Dropping()
    loss_fn = pure.functional(module, loss_fn=lambda model, x: model(x).square().mean())
    init, step, _ = pure.train_step(loss_fn, pure.sgd(0.0), [])
    first = init(pure.parameters(module), seed=7)
    losses = []
    for _ in range(2):
        state = first
        for _ in range(3):
            state = step(state, torch.ones(2, 3))
            losses.append(float(state.loss))
    assert losses[:3] == losses[3:]
    assert len(set(losses[:3])) == 3


@st.composite
def queries(draw: st.DrawFn) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """Return query, key and value, and options that go together."""
    heads, grouped = draw(st.sampled_from([1, 2, 4])), draw(st.booleans())
    length, others = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    shapes = ((2, 4, length, 3), *((2, heads if grouped else 4, others, 3),) * 2)
    mask = draw(st.sampled_from(["none", "bool", "float", "causal"]))
    options: dict[str, Any] = {"scale": draw(st.none() | st.floats(0.1, 2.0)), "enable_gqa": grouped}
    allowed = torch.ones(length, others, dtype=torch.bool).tril(draw(st.integers(0, 2)))
    options |= {"is_causal": True} if mask == "causal" else {}
    options |= {"attn_mask": allowed} if mask == "bool" else {}
    options |= {"attn_mask": torch.randn(length, others, dtype=torch.float64)} if mask == "float" else {}
    query, key, value = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return (query, key, value), options


@given(queries())
def test_attention_without_a_drop_is_that_of_torch(drawn: tuple[Any, dict[str, Any]]) -> None:
    """With any mask, scale and grouping: the formula is the kernel's, up to rounding."""
    tensors, options = drawn
    ours = attention(*tensors, dropout_p=0.5, drop=lambda weights, _: weights, **options)
    assert torch.allclose(ours, F.scaled_dot_product_attention(*tensors, **options), rtol=1e-10, atol=1e-12)
    plain = attention(*tensors, drop=lambda weights, _: weights * torch.nan, **options)
    assert torch.equal(plain, F.scaled_dot_product_attention(*tensors, **options))


def test_attention_drops_its_weights() -> None:
    """What is dropped are the weights after the softmax, at the rate that is passed."""
    x, rates = torch.eye(3), []

    def drop(weights: Tensor, p: float) -> Tensor:
        rates.append((p, weights.sum(-1).tolist()))
        return torch.zeros_like(weights)

    assert torch.equal(attention(x, x, x, dropout_p=0.25, drop=drop), torch.zeros(3, 3))
    assert rates == [(0.25, pytest.approx([1.0, 1.0, 1.0]))]
