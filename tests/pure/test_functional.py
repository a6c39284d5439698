"""``pure.functional``: the loss and the gradient of real modules, which stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from functrain import EMA, Accumulate, ClipNorm, FrozenMap, Hook, Shell, pure
from tests.pure.modules import Leaving, Tied, content, normed
from tests.pure.optimizing import furthest

X, Y = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)


def by_hand(module: nn.Module, batch: Any = (X, Y)) -> tuple[Tensor, dict[str, Tensor]]:
    """Return loss and gradients of a module by autograd."""
    loss = nn.functional.mse_loss(module(batch[0]), batch[1])
    held = dict(module.named_parameters())
    return loss.detach(), dict(zip(held, torch.autograd.grad(loss, list(held.values())), strict=True))


@pytest.mark.parametrize("build", [normed, Tied, Leaving])
def test_loss_gradient_and_buffers_are_those_of_the_module(build: Any) -> None:
    """Bitwise, with normalization in train mode, tied weights, replaced buffers; the module is as it was."""
    module, twin = build(), build()
    twin.load_state_dict(module.state_dict())
    before, target = content(module), Y.expand(build()(X).shape)
    loss_fn = pure.functional(module, nn.MSELoss())
    params, buffers = pure.parameters(module), pure.buffers(module)
    gradient = torch.func.grad_and_value(loss_fn, has_aux=True)
    grads, (loss, after) = gradient(params, buffers, (X, target))
    wanted, wanted_grads = by_hand(twin, (X, target))
    assert torch.equal(loss, wanted)
    assert grads.keys() == wanted_grads.keys()
    assert all(torch.equal(grads[name], wanted_grads[name]) for name in grads)
    assert all(torch.equal(after[name], leaf) for name, leaf in twin.named_buffers())
    assert content(module) == before


def test_what_is_passed_is_not_written_into() -> None:
    """The statistics that go in are the same afterwards, also without a gradient around the call."""
    module = normed()
    buffers = {name: leaf.clone() for name, leaf in pure.buffers(module).items()}
    copies = {name: leaf.clone() for name, leaf in buffers.items()}
    _, after = pure.functional(module, nn.MSELoss())(pure.parameters(module), buffers, (X, Y))
    assert all(torch.equal(buffers[name], copies[name]) for name in buffers)
    assert not torch.equal(after["1.running_mean"], buffers["1.running_mean"])
    assert int(after["1.num_batches_tracked"]) == 1


def test_the_mode_is_that_of_the_moment() -> None:
    """A module that is put into eval mode later goes on training in the loss; one in eval mode keeps its buffers."""
    module = normed()
    training = pure.functional(module, nn.MSELoss())
    evaluating = pure.functional(module.eval(), nn.MSELoss())
    given = pure.parameters(module), pure.buffers(module), (X, Y)
    assert int(training(*given)[1]["1.num_batches_tracked"]) == 1
    assert int(evaluating(*given)[1]["1.num_batches_tracked"]) == 0


def test_a_tied_parameter_is_there_once() -> None:
    """Names are those of ``named_parameters``, and a step keeps both ends of the tie equal."""
    module = Tied()
    assert list(pure.parameters(module)) == ["inner.weight", "inner.bias", "outer.bias"]
    init, step, _ = pure.train_step(pure.functional(module, nn.MSELoss()), pure.sgd(0.1), [])
    state = step(init(pure.parameters(module)), (X, Y.expand(6, 3)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    nn.functional.mse_loss(module(X), Y.expand(6, 3)).backward()
    optimizer.step()
    assert all(torch.equal(state.params["main"][name], leaf) for name, leaf in module.named_parameters())


def test_a_tied_buffer_stays_tied() -> None:
    """A buffer under two names is one tensor inside the call: what is written under one is read under the other."""

    class Two(nn.Module):
        a: Tensor
        b: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))
            self.register_buffer("a", torch.zeros(()))
            self.register_buffer("b", self.a)

        def forward(self) -> Tensor:
            self.a.add_(1.0)
            return self.w * self.b

    loss, after = pure.functional(Two(), loss_fn=lambda model, _: model())(
        {"w": torch.ones(())}, {"a": torch.ones(())}, ()
    )
    assert float(loss) == 2.0
    assert after == {"a": 2.0}


HOOKS: tuple[Hook, ...] = (Accumulate(every=2), ClipNorm(max_norm=0.1), EMA(decay=0.5))


def test_a_frozen_parameter_stays_as_it_is_in_both_interpreters() -> None:
    """It is there to be averaged and read, has no gradient and no decay, and stays frozen across the bridge."""
    module, twin = normed(), normed()
    for each in (module, twin):
        each.get_parameter("0.weight").requires_grad_(False)
    start = module.get_parameter("0.weight").clone()
    loss_fn = pure.functional(module, nn.MSELoss())
    init, step, _ = pure.train_step(loss_fn, pure.sgd(0.1, momentum=0.9, weight_decay=0.5), HOOKS)
    shell = Shell(twin, torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5), HOOKS)
    state = init(pure.parameters(module), pure.buffers(module))
    for place in range(8):
        state = step(state, (X, Y))
        with shell.batch():
            shell.update(nn.functional.mse_loss(twin(X), Y))
        if place == 3:
            state = shell.to_pure()
    assert "0.weight" not in state.grads["main"]
    assert torch.equal(state.params["main"]["0.weight"], start)
    assert furthest(state.params, shell.state.params) < 1e-12
    averages = ({"main": each.hooks["ema"]["shadow"]} for each in (state, shell.state))
    assert furthest(*map(FrozenMap, averages)) < 1e-12


def test_several_inputs_go_before_the_target() -> None:
    """A batch of three is two inputs and a target."""
    module = nn.Bilinear(3, 3, 1, dtype=torch.float64)
    loss, _ = pure.functional(module, nn.MSELoss())(pure.parameters(module), {}, (X, X, Y))
    assert torch.equal(loss, nn.functional.mse_loss(module(X, X), Y))


def test_a_loss_of_model_and_batch_may_do_anything() -> None:
    """With ``loss_fn`` the model is the real thing: parts, methods, any batch; the loss is the one ``fit`` takes."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).double()

    def loss_fn(model: Any, batch: dict[str, Tensor]) -> Tensor:
        hidden = model[0](batch["x"])
        return (model[1](hidden) - batch["y"]).square().mean() + 0.1 * sum(p.norm() for p in model.parameters())

    batch = {"x": X, "y": Y}
    loss, _ = pure.functional(module, loss_fn=loss_fn)(pure.parameters(module), pure.buffers(module), batch)
    assert torch.equal(loss, loss_fn(module, batch))


@pytest.mark.parametrize("form", ["sequence", "mapping"])
def test_several_models_come_by_key(form: str) -> None:
    """Parameters, buffers and models come by model key; what two models share is trained once, under the first."""
    first, second = normed(), nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1)).double()
    second[1].bias = first[4].bias
    models: Any = [first, second] if form == "sequence" else {"0": first, "1": second}

    def both(given: dict[str, Any], batch: Any) -> Tensor:
        return (given["1"](given["0"](batch[0])) - batch[1]).square().mean()

    params, buffers = pure.parameters(models), pure.buffers(models)
    assert list(params["1"]) == ["0.weight", "0.bias", "1.weight"]
    for loss_fn in (pure.functional(models, both), pure.functional(models, loss_fn=both)):
        grads, (loss, after) = torch.func.grad_and_value(loss_fn, has_aux=True)(params, buffers, (X, Y))
        twins = {"0": normed(), "1": second}
        twins["0"].load_state_dict(first.state_dict())
        twins["0"].get_submodule("4").bias = first[4].bias
        wanted = both(twins, (X, Y))
        shared = torch.autograd.grad(wanted, first[4].bias)[0]
        assert torch.equal(loss, wanted)
        assert torch.equal(grads["0"]["4.bias"], shared)
        assert torch.equal(after["0"]["1.running_var"], twins["0"].get_submodule("1").running_var)


def test_a_run_on_real_modules_is_the_loop_by_hand() -> None:
    """Ten steps with normalization and momentum: parameters and buffers are bitwise those of the eager loop."""
    module, twin = normed(), normed()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    init, step, _ = pure.train_step(pure.functional(module, nn.MSELoss()), pure.sgd(0.1, momentum=0.9), [])
    state = init(pure.parameters(module), pure.buffers(module))
    for _ in range(10):
        state = step(state, (X, Y))
        optimizer.zero_grad()
        nn.functional.mse_loss(twin(X), Y).backward()
        optimizer.step()
    for held, names in ((state.params, twin.named_parameters()), (state.buffers, twin.named_buffers())):
        assert all(torch.equal(held["main"][name], leaf) for name, leaf in names)
