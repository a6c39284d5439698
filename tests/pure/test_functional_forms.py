"""``pure.functional`` on wrapped, compiled and patched modules, in lanes, in one graph; and what it refuses."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from functrain import _tree, pure
from tests.pure.modules import Leaving, Tied, content, normed

X, Y = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)


def patched(module: Any) -> nn.Module:
    """Return a module whose forward was replaced on the instance."""
    module.forward = MethodType(lambda self, x: self[4](self[2](self[0](x))), module)
    return module


def hooked(module: Any) -> nn.Module:
    """Return a module with a hook on a part."""
    module[0].register_forward_hook(lambda part, _, out: 2.0 * out + part.bias)
    return module


def compiled_part(module: Any) -> nn.Module:
    """Return a module of which one part is compiled."""
    module[0] = torch.compile(module[0], backend="eager")
    return module


def compiled_in_place(module: Any) -> nn.Module:
    """Return a module that compiled itself."""
    module.compile(backend="eager")
    return module


def normalized(module: Any) -> nn.Module:
    """Return a module one of whose weights is computed from others."""
    nn.utils.parametrizations.weight_norm(module[0])
    return module


FORMS = (patched, hooked, compiled_part, compiled_in_place, normalized)


def gradients(loss_fn: Any, module: nn.Module) -> tuple[dict[str, Tensor], Any]:
    """Return gradients, and loss and buffers, of a pure loss at the module's weights."""
    return torch.func.grad_and_value(loss_fn, has_aux=True)(pure.parameters(module), pure.buffers(module), (X, Y))


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_module_gives_its_own_gradients(form: Any) -> None:
    """Whatever was done to the module: names are plain, and gradients and statistics are those that autograd finds."""
    module, twin = form(normed()), form(normed())
    grads, (loss, after) = gradients(pure.functional(module, nn.MSELoss()), module)
    wanted = nn.functional.mse_loss(twin(X), Y)
    wanted.backward()
    assert torch.equal(loss, wanted)
    assert not any("_orig_mod" in name for name in grads)
    for name, leaf in zip(grads, twin.parameters(), strict=True):
        assert torch.equal(grads[name], torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
    assert all(torch.equal(left, right) for left, right in zip(after.values(), twin.buffers(), strict=True))


def test_a_recurrent_network_uses_the_weights_it_is_given() -> None:
    """Recurrent modules keep a list of their weights besides: gradients are those of autograd all the same."""
    torch.manual_seed(0)
    module = nn.LSTM(3, 2, num_layers=2, dtype=torch.float64)
    loss_fn = pure.functional(module, loss_fn=lambda model, x: model(x)[0].square().mean())
    grads = torch.func.grad(loss_fn, has_aux=True)(pure.parameters(module), {}, X[:, None])[0]
    module(X[:, None])[0].square().mean().backward()
    assert all(torch.allclose(grads[name], leaf.grad, rtol=1e-12) for name, leaf in module.named_parameters())


def test_a_failing_forward_leaves_the_module_as_it_was() -> None:
    """After an exception in the loss the module holds its own tensors, and the next call works."""
    module, raises = Leaving(), [True]

    def loss_fn(model: Any, batch: Any) -> Tensor:
        out = model(batch[0])
        if raises:
            raises.pop()
            raise ArithmeticError
        return out.mean()

    before, loss = content(module), pure.functional(module, loss_fn=loss_fn)
    with pytest.raises(ArithmeticError):
        gradients(loss, module)
    assert content(module) == before
    assert torch.equal(gradients(loss, module)[1][0], module(X).mean())


@pytest.mark.parametrize("build", [normed, Tied])
def test_one_graph_serves_all_weights(build: Any) -> None:
    """A compiled loss of a real module traces once, and gives the bits of the eager one."""
    module, counter = build(), CompileCounter()
    loss_fn = pure.functional(module, loss_fn=lambda model, batch: (model(batch[0]) - batch[1]).square().mean())
    gradient = torch.func.grad(loss_fn, has_aux=True)
    torch._dynamo.reset()
    compiled = torch.compile(gradient, fullgraph=True, backend=counter)
    copies = (
        _tree.map_leaves(lambda leaf: leaf.detach().clone(), take(module)) for take in (pure.parameters, pure.buffers)
    )
    params, buffers = copies
    for _ in range(4):
        (grads, buffers), traced = gradient(params, buffers, (X, Y)), compiled(params, buffers, (X, Y))
        assert all(map(torch.equal, _tree.leaves((grads, buffers)), _tree.leaves(traced)))
        params = {name: (leaf - grads[name]).detach() for name, leaf in params.items()}
    assert counter.frame_count == 1


def test_lanes_have_statistics_of_their_own() -> None:
    """Lanes with other weights and other statistics: each equals its run alone to 1e-12."""
    loss_fn = pure.functional(normed(), nn.MSELoss())
    lanes = [normed() for _ in range(3)]
    for place, module in enumerate(lanes):
        nn.init.normal_(module.get_parameter("0.weight"), std=1.0 + place)
        module.get_buffer("1.running_mean").fill_(float(place))
    stacked = [
        _tree.map_leaves(lambda *leaves: torch.stack(leaves).detach(), *map(take, lanes))
        for take in (pure.parameters, pure.buffers)
    ]
    mapped = torch.func.vmap(torch.func.grad(loss_fn, has_aux=True), (0, 0, None))(*stacked, (X, Y))
    for place, module in enumerate(lanes):
        alone = torch.func.grad(loss_fn, has_aux=True)(pure.parameters(module), pure.buffers(module), (X, Y))
        pairs = zip(_tree.leaves(mapped), _tree.leaves(alone), strict=True)
        assert all(torch.allclose(lane[place], leaf, rtol=1e-12, atol=1e-12) for lane, leaf in pairs)


def test_the_names_must_be_those_of_the_modules() -> None:
    """A lacking, a foreign name and a foreign model are told; torch would go on with the module's own weights."""
    loss_fn = pure.functional(nn.Linear(3, 1), nn.MSELoss())
    weight, bias = torch.ones(1, 3), torch.ones(1)
    with pytest.raises(KeyError, match=r"lack .*bias.* and have .*bais.*functrain.pure.parameters"):
        loss_fn({"weight": weight, "bais": bias}, {}, (X, Y))
    with pytest.raises(KeyError, match=r"buffers of model.*functrain.pure.buffers"):
        loss_fn({"weight": weight, "bias": bias}, {"mean": bias}, (X, Y))
    with pytest.raises(KeyError, match=r"models .*teacher.*among .*main"):
        loss_fn({"main": {"weight": weight, "bias": bias}, "teacher": {"weight": weight}}, {}, (X, Y))


def test_one_of_criterion_and_loss_fn_is_needed() -> None:
    """Neither, both, or what cannot be called is a TypeError that shows the two forms."""
    for given in ((), (nn.MSELoss(), nn.MSELoss()), (1.0,)):
        options: Any = dict(zip(("criterion", "loss_fn"), given, strict=False))
        with pytest.raises(TypeError, match=r"criterion\(output, target\) or a loss_fn\(model, batch\)"):
            pure.functional(nn.Linear(1, 1), **options)


@pytest.mark.parametrize("batch", [torch.ones(3), {"x": torch.ones(3)}])
def test_a_criterion_needs_a_batch_that_ends_with_a_target(batch: Any) -> None:
    """A tensor or a mapping cannot be taken apart: the error shows the other form."""
    module = nn.Linear(3, 1)
    with pytest.raises(TypeError, match=rf"got {type(batch).__name__}; pass functional\(module, loss_fn="):
        pure.functional(module, nn.MSELoss())(pure.parameters(module), {}, batch)


def test_a_criterion_with_parameters_is_a_model() -> None:
    """It would not be trained, so it is refused, and trained where it is named among the models."""
    model, criterion = nn.Linear(3, 2), nn.Bilinear(2, 1, 1)
    with pytest.raises(ValueError, match=r"Bilinear has parameters of its own.*among the models"):
        pure.functional(model, criterion)
    models = {"model": model, "criterion": criterion}
    loss_fn = pure.functional(models, lambda each, b: each["criterion"](each["model"](b[0]), b[1]).mean())
    grads, _ = torch.func.grad(loss_fn, has_aux=True)(pure.parameters(models), {}, (X.float(), Y.float()))
    assert grads["criterion"]["weight"].abs().sum() > 0


def test_a_lazy_module_has_to_run_first() -> None:
    """Parameters without a shape are refused by name."""
    with pytest.raises(ValueError, match=r'"weight" of model "main" has no shape yet; run one batch'):
        pure.parameters(nn.LazyLinear(1))
