"""The gradients of a state: whose they are, how large, and how to multiply them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from functrain import _foreach, _shards
from functrain._select import Flag, Number, both, either, is_finite, is_free, is_nan, negate, peek, select
from functrain._state import TrainState
from functrain._tree import FrozenMap


def by_optimizer(state: TrainState) -> dict[str, list[Tensor]]:
    """Return the gradients that each optimizer would apply, in the order of models and ``named_parameters()``.

    Gradients that no optimizer holds are left out: they change no weight. Without any owners all are listed under "".
    """
    return state.grads.derived(("by optimizer", state.owners), lambda: _sort_out(state))


def _sort_out(state: TrainState) -> Any:
    if len(state.owners.table) == 1 and _all_owned(state):
        return dict.fromkeys(state.owners.table, applied(state))
    found: dict[str, list[Tensor]] = {key: [] for key in state.owners.table} or {"": []}
    for key, grad in owned(state):
        found[key].append(grad)
    return found


def owned(state: TrainState) -> list[tuple[str, Tensor]]:
    """Return each gradient that will be applied beside its optimizer, in the order in which the models list them."""
    grads = [(model, held.items()) for model, held in state.grads.items()]
    if not state.owners.table:
        return [("", grad) for _, held in grads for _, grad in held]
    of = state.owners.of_parameter
    keyed = [(of(model, name), grad) for model, held in grads for name, grad in held]
    return [(key, grad) for key, grad in keyed if key is not None]


def applied(state: TrainState) -> list[Tensor]:
    """Return the gradients that will be applied, in the order in which the models list them."""
    if _all_owned(state):
        return [grad for held in state.grads.values() for grad in held.values()]
    return [grad for _, grad in owned(state)]


def _all_owned(state: TrainState) -> bool:
    """Tell whether some optimizer holds each parameter; found out once for all parameters of a run."""
    return state.params.derived(("all owned", state.owners), lambda: _is_each_owned(state))


def _is_each_owned(state: TrainState) -> bool:
    of = state.owners.of_parameter
    return all(of(model, name) is not None for model, held in state.params.items() for name in held)


def non_finite(state: TrainState) -> dict[str, Flag]:
    """Return for each optimizer whether one of its gradients holds an inf or a NaN: 0-d bool tensors, no sync."""
    found = {key: _any_non_finite(state, grads) for key, grads in by_optimizer(state).items()}
    return _shards.any_over_ranks(found, (grad for _, grad in owned(state))) if _has_shards(state) else found


def _any_non_finite(state: TrainState, grads: Sequence[Tensor]) -> Flag:
    filled = [part for part in map(_foreach.summed, _foreach.locals_of(grads)) if part.numel()]
    if not filled:
        return False
    if is_free(filled[0]) and _has_finite_norm(filled, 2.0) is True:
        return False  # on a CPU this is 20 times as fast as the others; squares that overflow prove nothing
    if not state.donated:
        return negate(peek(torch.stack([grad.isfinite().all().to(filled[0].device) for grad in filled]).all()))
    # The largest magnitude cannot overflow, so it is finite iff every element is; that of a complex number can.
    return negate(_has_finite_norm([_foreach.as_real(grad) for grad in filled], float("inf")))


def _has_finite_norm(grads: Sequence[Tensor], order: float) -> Flag:
    """Tell whether the one norm over all is finite."""
    return is_finite(_foreach.norm(torch.stack(_foreach.norms(grads, order)), order))


def overflowed(state: TrainState, key: str) -> Flag:
    """Return whether an optimizer's gradients were found non-finite by the loss scaler."""
    return state.scaler["found_inf"].get(key, False) if state.scaler else False


def any_non_finite(state: TrainState) -> Flag:
    """Return whether a gradient that is about to be applied holds an inf or a NaN."""
    found: Flag = False
    for key, bad in non_finite(state).items():
        found = either(found, select(overflowed(state, key), lambda: False, lambda bad=bad: bad))
    return found


def total_norm(state: TrainState, order: float = 2.0) -> Tensor:
    """Return one norm over all gradients about to be applied, bitwise that of ``clip_grad_norm_`` where finite.

    Gradients of optimizers that overflowed do not count. Where squares overflow although every gradient is finite,
    the norm is taken again after division by the largest magnitude.

    Returns:
        a 0-d tensor of the gradients' real dtype; 0 without gradients.
    """
    if _has_shards(state):
        return _norm_over_ranks(state, order)
    parts = _norm_parts(state, order)
    if not parts:
        return torch.zeros((), dtype=torch.float32, device="cpu")
    plain = _foreach.norm(torch.stack(parts), order)
    finite = is_finite(plain)
    return plain if finite is True else select(finite, lambda: plain, lambda: _rescued(state, order, plain))


def _has_shards(state: TrainState) -> bool:
    """Tell whether a parameter is sharded, and so its gradient; found out once for all parameters of a run."""
    return state.params.derived("has shards", lambda: _any_shard(state))


def _any_shard(state: TrainState) -> bool:
    return any(_foreach.is_sharded(leaf) for held in state.params.values() for leaf in held.values())


def _norm_over_ranks(state: TrainState, order: float) -> Tensor:
    """Return the norm over gradients of which ranks hold parts: each part counts once, however many hold it."""
    pairs = [(negate(overflowed(state, key)), grad) for key, grad in owned(state)]
    if not pairs:
        return torch.zeros((), dtype=torch.float32, device="cpu")
    kind = torch.empty(0, dtype=pairs[0][1].dtype, device="cpu").real.dtype
    return _shards.total_norm(pairs, order).to(kind)


def _norm_parts(state: TrainState, order: float) -> list[Tensor]:
    """Return one norm per gradient, on one device, zero where the optimizer overflowed.

    In the order of ``clip_grad_norm_`` over all models, however optimizers share them: sums round by order.
    """
    norms = _foreach.norms if state.donated else _foreach.norms_one_by_one
    if not state.scaler:
        return norms(_measurable(applied(state), order), order)
    pairs = [(key, each) for key, grad in owned(state) for each in _measurable([grad], order)]
    return _masked_by_optimizer(state, pairs, norms([grad for _, grad in pairs], order))


def _measurable(grads: Sequence[Tensor], order: float) -> list[Tensor]:
    """Return what has a norm: sparse gradients with their entries summed, and no maximum over nothing."""
    dense = [_foreach.summed(grad) if grad.is_sparse else grad for grad in grads]
    return [grad for grad in dense if grad.numel()] if order == float("inf") else dense


def _masked_by_optimizer(state: TrainState, pairs: list[tuple[str, Tensor]], norms: list[Tensor]) -> list[Tensor]:
    """Return norms, which are in the order of the groups, with zero where the optimizer overflowed."""
    first: dict[Any, int] = {}
    pairs.sort(key=lambda pair: first.setdefault((pair[1].device, pair[1].dtype), len(first)))
    keyed = zip((key for key, _ in pairs), norms, strict=True)
    return [_masked(overflowed(state, key), norm) for key, norm in keyed]


def _masked(hidden: Flag, norm: Tensor) -> Tensor:
    """Return zero for a norm that must not count."""
    return select(hidden, lambda: torch.zeros_like(norm), lambda: norm)


def _rescued(state: TrainState, order: float, plain: Tensor) -> Tensor:
    """Return the norm by way of the largest magnitude, in double; what is truly non-finite stays so."""
    grads = [(key, _foreach.summed(grad)) for key, grad in owned(state)]
    grads = [(key, grad) for key, grad in grads if grad.numel()]
    if not grads:  # a tracer takes this way, too
        return plain
    largest = torch.stack(
        [_masked(overflowed(state, key), g.abs().amax().to(plain.device, torch.float64)) for key, g in grads]
    ).amax()
    parts = [_masked(overflowed(state, key), _norm_of_quotient(g, largest, order)) for key, g in grads]
    norm = largest * _foreach.norm(torch.stack(parts), order)
    return torch.where((largest > 0) & largest.isfinite(), norm, largest).to(plain.dtype)


def _norm_of_quotient(grad: Tensor, largest: Tensor, order: float) -> Tensor:
    quotient = grad / largest.to(grad.device)
    return _foreach.norm(quotient.to(_wide(grad)), order).to(largest.device)


def _wide(grad: Tensor) -> torch.dtype:
    """Return the double of a dtype's kind."""
    return torch.complex128 if grad.is_complex() else torch.float64


def measured(state: TrainState, norm: Tensor, limit: Number, will_skip: Flag) -> TrainState:
    """Return the state with ``grad_norm`` and ``grad_limit`` published, by the first hook of a batch to measure.

    No hook has clipped yet then. Interpreters set metrics to NaN at the start of a batch, so NaN means that nobody has
    measured so far.
    """
    old = state.metrics.get("grad_norm")
    known = norm if old is None else old
    first = both(negate(will_skip), is_nan(known))
    if first is False and old is not None:
        return state
    found = {"grad_norm": norm, "grad_limit": _on_device(limit, norm)}
    if first is True:
        return state.with_metrics(found)
    held = {name: state.metrics.get(name, value) for name, value in found.items()}

    def chosen(name: str) -> Tensor:
        return select(first, lambda: found[name], lambda: _on_device(held[name], norm))

    return state.with_metrics({name: chosen(name) for name in found})


def _on_device(number: Number, norm: Tensor) -> Tensor:
    """Return a number as float32 where a norm is; filled in there, since a copy would wait for the device."""
    if isinstance(number, Tensor):
        return number.detach().to(norm.device, torch.float32)
    return torch.full((), number, dtype=torch.float32, device=norm.device)


def limited(state: TrainState, norm: Tensor, limit: Number, will_skip: Flag) -> TrainState:
    """Return the state with gradients scaled down so that ``norm`` becomes at most ``limit``.

    coefficient = min(1, limit / (norm + 1e-6)), as in ``torch.nn.utils.clip_grad_norm_``. A non-finite norm, and a
    step that will be skipped, leave the gradients as they are.
    """
    if _is_far_below(norm, limit):
        return state
    apply = both(negate(will_skip), is_finite(norm))
    if apply is False:
        return state
    # The norm is replaced before it divides: in a differentiated run 0 * nan would be nan behind the second where.
    # The order of roundings is torch's: a number over a tensor is the reciprocal times the number. In half precision
    # the reciprocal of 1e-6 is infinite, and times a limit of 0 no number at all.
    inverse = (select(apply, lambda: norm, lambda: torch.ones_like(norm)) + 1e-6).reciprocal()
    safe = _foreach.scaled(inverse, limit).clamp(max=1.0).nan_to_num(nan=1.0)
    coefficient = select(apply, lambda: safe, lambda: torch.ones_like(safe))
    return state if peek(coefficient == 1.0) is True else multiplied(state, coefficient)


def _is_far_below(norm: Tensor, limit: Number) -> bool:
    """Tell, where that is free, that the norm is finite and the coefficient 1 whatever the rounding."""
    return not isinstance(limit, Tensor) and is_free(norm) and 1.05 * norm.item() + 1e-5 < limit


def multiplied(state: TrainState, factor: Number) -> TrainState:
    """Return the state with every gradient times a factor: in place where donated."""
    if not state.donated:
        return mapped(state, lambda _model, _name, grad: _foreach.scaled(grad, factor))
    _foreach.multiply_([grad for held in state.grads.values() for grad in held.values()], factor)
    return state


def mapped(state: TrainState, function: Callable[[str, str, Tensor], Tensor]) -> TrainState:
    """Return the state with ``function(model_key, name, grad)`` in place of each gradient."""
    return state.replace(
        grads=FrozenMap(
            {
                model: FrozenMap({name: function(model, name, grad) for name, grad in held.items()})
                for model, held in state.grads.items()
            }
        )
    )


def replaced(state: TrainState, function: Callable[[str, str, Tensor], Tensor], will_skip: Flag) -> TrainState:
    """Return the state with mapped gradients unless the step will be skipped; written in place where donated."""
    after = mapped(state, lambda m, n, g: select(negate(will_skip), lambda: function(m, n, g), lambda: g))
    if not state.donated:
        return after
    for model, held in state.grads.items():
        _foreach.copy_(list(held.values()), list(after.grads[model].values()))
    return state
