"""What users will meet: each error of torch.func is one sentence that says what to write, chained to torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from functrain import ClipNorm, PurityError, StructureError, _tree, pure
from functrain.pure.errors import SENTENCES, explained

CAPTURED = torch.zeros(3)
Loss = Callable[..., Any]


def writes(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Count in a tensor from outside."""
    CAPTURED.add_(params["w"])
    return CAPTURED.sum()


def branches(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Decide by a value."""
    total = params["w"].sum()
    return total if total > 0 else -total


def reads(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Take a value out."""
    return params["w"].sum() * params["w"].detach().sum().item()


def masks(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Pick by a mask."""
    return params["w"][params["w"] > 0].sum()


def leaves_torch(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Call another library."""
    return params["w"].sum() * float(params["w"].detach().numpy()[0])


def draws(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Drop by torch's own stream."""
    return F.dropout(params["w"], 0.5).sum()


def mixes(params: Any, buffers: Any, batch: Any) -> Any:
    """Write a value with lanes into a row of a buffer without."""
    buffers["seen"][0] = params["w"].detach().sum()
    return params["w"].sum(), buffers


LANES: tuple[tuple[Loss, str], ...] = (
    (writes, r"^the loss writes in place into a tensor from outside.*pass it in buffers.*x = x \+ y"),
    (branches, r"^the loss asks for the value of a tensor.*torch.where"),
    (reads, r"^the loss asks for the value of a tensor.*torch.where"),
    (masks, r"^the loss picks as many elements as values say.*torch.where\(mask, x, 0\)"),
    (leaves_torch, r"^the loss takes a tensor out of torch.*stay in torch functions"),
    (draws, r"^the loss draws from torch's stream.*rng.keep.*noise=True"),
    (mixes, r"^the loss writes values with lanes in place into a tensor without.*in_dims=0"),
)


def loss_of(function: Callable[[Tensor], Any]) -> Loss:
    """Return a loss function that returns whatever a function of the weight returns."""

    def loss_fn(params: Any, buffers: Any, batch: Any) -> Any:
        return function(params["w"])

    return loss_fn


def started(loss_fn: Loss, buffers: Any = None) -> tuple[Any, Any]:
    """Return a state and a step of a run of one weight."""
    init, step, _ = pure.train_step(loss_fn, pure.sgd(0.1), ClipNorm(max_norm=1.0))
    return init({"w": torch.ones(3)}, buffers or {"seen": torch.zeros(2)}), step


def in_lanes(loss_fn: Loss) -> None:
    """Run a step of two lanes of weights, whose buffers are shared."""
    state, step = started(loss_fn)
    lanes = state.replace(params=_tree.map_leaves(lambda leaf: torch.stack([leaf, leaf]), state.params))
    dims = _tree.map_leaves(lambda _: None, state).replace(params=_tree.map_leaves(lambda _: 0, state.params))
    torch.func.vmap(step, (dims, None))(lanes, ())


@pytest.mark.parametrize(("loss_fn", "sentence"), LANES)
def test_in_lanes_each_mistake_is_one_sentence(loss_fn: Loss, sentence: str) -> None:
    """What cannot be vectorized says who did what and what to write; torch's own error is its cause."""
    with pytest.raises(RuntimeError, match=sentence) as caught:
        in_lanes(loss_fn)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert any(part in str(caught.value.__cause__) for part in SENTENCES)
    assert "\n" not in str(caught.value)


def test_a_write_from_outside_is_told_without_lanes() -> None:
    """The gradient alone cannot go through it either."""
    state, step = started(writes)
    with pytest.raises(RuntimeError, match=r"^the loss writes in place into a tensor from outside"):
        step(state, ())
    assert torch.equal(CAPTURED, torch.zeros(3))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_normalization_in_lanes_says_what_it_needs(momentum: float | None) -> None:
    """Statistics without lanes, and a momentum that is read from a count, are told; the layer works otherwise."""
    module = nn.BatchNorm1d(3, momentum=momentum)
    loss_fn = pure.functional(module, loss_fn=lambda model, x: model(x).square().sum())
    params, buffers, x = pure.parameters(module), pure.buffers(module), torch.randn(2, 4, 3)
    stacked = {name: torch.stack([leaf, leaf]) for name, leaf in buffers.items()}
    if momentum is None:
        with pytest.raises(RuntimeError, match=r"give nn\.BatchNorm a momentum other than None"):
            torch.func.vmap(loss_fn, (None, 0, 0))(params, stacked, x)
        return
    after = torch.func.vmap(loss_fn, (None, 0, 0))(params, stacked, x)[1]
    assert after["num_batches_tracked"].tolist() == [1, 1]
    with pytest.raises(RuntimeError, match=r"statistics of BatchNorm, which have no lanes.*in_dims=0"):
        torch.func.vmap(loss_fn, (None, None, 0))(params, buffers, x)


def test_an_error_of_the_user_comes_through_as_it_is() -> None:
    """Errors that are not of torch.func are neither caught nor changed."""
    own = RuntimeError("mine")

    def fails(*_: Any) -> None:
        raise own

    with pytest.raises(RuntimeError) as caught:
        explained("the loss", fails)
    assert caught.value is own
    state, step = started(loss_of(lambda w: w @ torch.ones(4)))
    with pytest.raises(RuntimeError, match="size"):
        step(state, ())


RETURNED: tuple[tuple[Any, type[Exception], str], ...] = (
    (lambda _: None, TypeError, r"returned NoneType: return the loss as a 0-d tensor"),
    (lambda _: 1.0, TypeError, r"returned float"),
    (lambda w: [w.sum()], TypeError, r"returned list"),
    (lambda w: w, ValueError, r"shape \(3,\).*return loss.mean\(\) or loss.sum\(\)"),
    (lambda w: w.sum().long(), TypeError, r"torch.int64.*which has no gradient"),
    (lambda w: w.sum() * 1j, TypeError, r"torch.complex64.*real floating-point"),
    (lambda w: (w.sum(),), TypeError, r"returned \(a Tensor.*\): return the loss, or \(loss, buffers\)"),
    (lambda w: (w.sum(), w.mean()), TypeError, r"a number that is only to be looked at becomes a buffer"),
    (lambda w: (w.sum(), {}, w), TypeError, r"returned \(a Tensor.*, dict, a Tensor"),
    (lambda w: (w.sum(), {"sen": w}), StructureError, r"without \['seen'\] and with \['sen'\].*\{\*\*buffers"),
    (lambda w: (w.sum(), {"seen": w}), StructureError, r"'seen' as .*\(3,\).*went in as .*\(2,\)"),
    (lambda w: (w.sum(), {"seen": torch.zeros(2).double()}), StructureError, r"float64.*float32"),
    (lambda w: (w.sum(), {"seen": 1.0}), StructureError, r"'seen' as float"),
    (lambda w: (w.sum(), {"main": {"seen": w[:2]}, "x": {"y": w}}), StructureError, r"'x' which is no model"),
)


@pytest.mark.parametrize(("result", "kind", "message"), RETURNED)
def test_what_a_loss_must_not_return(result: Any, kind: type[Exception], message: str) -> None:
    """No scalar, no tensor, no mapping, other buffers: what came, and what to return."""
    state, step = started(loss_of(result))
    with pytest.raises(kind, match=message):
        step(state, ())


def assigns(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Replace a buffer."""
    buffers["seen"] = buffers["seen"] + 1
    return params["w"].sum()


def adds(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Write into a buffer."""
    buffers["seen"].add_(1)
    return params["w"].sum()


def forgets(params: Any, buffers: Any, batch: Any) -> Tensor:
    """Run normalization in train mode."""
    module = nn.BatchNorm1d(3)
    tensors = {"weight": params["w"], "bias": params["w"], **buffers}
    return torch.func.functional_call(module, tensors, (torch.randn(4, 3),)).sum()


STATISTICS = {
    "running_mean": torch.zeros(3),
    "running_var": torch.ones(3),
    "num_batches_tracked": torch.zeros((), dtype=torch.int64),
}


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("loss_fn", [assigns, adds, forgets])
def test_buffers_that_are_changed_and_not_returned_are_told(loss_fn: Loss, lanes: bool) -> None:
    """What would be lost is told, and nothing that went in has changed."""
    state, step = started(loss_fn, STATISTICS if loss_fn is forgets else {"seen": torch.zeros(2)})
    before = [leaf.clone() for leaf in _tree.leaves(state.buffers)]
    run = torch.func.vmap(step, (0, None), randomness="same") if lanes else step
    given = _tree.map_leaves(lambda leaf: torch.stack([leaf, leaf]), state) if lanes else state
    with pytest.raises(PurityError, match=r"changes buffer '\w+' of model 'main' and does not return it"):
        run(given, ())
    assert all(map(torch.equal, before, _tree.leaves(state.buffers)))


def test_a_loss_that_only_reads_buffers_returns_the_loss_alone() -> None:
    """Nothing is told where nothing was changed, and the buffers stay."""
    state, step = started(lambda params, buffers, _: (params["w"] * buffers["seen"].sum()).sum())
    assert torch.equal(step(state, ()).buffers["main"]["seen"], torch.zeros(2))


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    """A typo in a look-up shows the names of parameters and buffers."""
    state, step = started(lambda params, *_: params["weight"].sum())
    with pytest.raises(KeyError, match=r"looks up 'weight'.*params are \['w'\]; buffers are \['seen'\]") as caught:
        step(state, ())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_key_of_another_dict_comes_as_it_is() -> None:
    """A KeyError about a name that is there is not about parameters."""
    names: dict[str, Tensor] = {}
    state, step = started(loss_of(lambda _: names["w"]))
    with pytest.raises(KeyError) as caught:
        step(state, ())
    assert caught.value.args == ("w",)
