"""A pure loss from real modules: parameters, buffers and randomness go in, the loss and the new buffers come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from functrain import _tree
from functrain._tree import FrozenMap
from functrain.pure.drawing import Drawing, may_draw
from functrain.pure.errors import explained
from functrain.pure.naming import buffers_of, filled, parameters_of, placed, places_of
from functrain.pure.noise import Noise
from functrain.pure.protocol import handed_out, taken_in
from functrain.pure.twin import twins
from functrain.shell.models import keyed

Loss: TypeAlias = Callable[[Any, Any], Tensor]


def functional(
    models: Any,
    criterion: Loss | None = None,
    *,
    loss_fn: Loss | None = None,
    noise: bool | None = None,
) -> Functional:
    """Return ``(params, buffers, batch[, rng]) -> (loss, buffers)`` of real modules, which stay as they are.

    With ``criterion(output, target)`` a batch is ``(inputs..., target)`` and the output is ``module(*inputs)``. All
    else is a ``loss_fn(model, batch)``, the one that :func:`functrain.fit` takes; of several models it gets a dict by
    key, and may then be given as ``criterion`` as well. Inside it a model is the real thing: methods, submodules and
    tied weights work.

    Modules are read once: their mode (train, eval) is that of this moment. Buffers are copied on the way in, and all
    are returned, so batch normalization in train mode keeps its statistics. What a module draws through dropout of any
    kind, attention with dropout, ``rand``, ``randn``, ``bernoulli`` or in place (``uniform_``, ``normal_``,
    ``bernoulli_``, ``exponential_``) comes from ``rng``, a :class:`Noise`, and is the same in a lane of ``vmap`` as
    alone; other random functions still draw from torch's stream.

    Args:
        models: a module, a sequence of modules, or a mapping.
        criterion: what compares output and target, like ``nn.CrossEntropyLoss()``.
        loss_fn: ``loss_fn(model, batch) -> loss``, instead of a criterion.
        noise: whether the loss takes ``rng``; by default iff a part in training mode may draw.

    Raises:
        TypeError: neither or both of ``criterion`` and ``loss_fn``.
        ValueError: a criterion with parameters of its own, lazy modules.

    >>> module = nn.Linear(2, 1)
    >>> loss = functional(module, nn.MSELoss())
    >>> loss({"weight": torch.ones(1, 2), "bias": torch.ones(1)}, {}, (torch.ones(5, 2), torch.ones(5, 1)))[0]
    tensor(4.)
    """
    modules = keyed(models, nn.Module, "models")
    own = twins(modules)
    takes_noise = any(map(may_draw, own.values())) if noise is None else noise
    return Functional(own, _chosen_loss(criterion, loss_fn, several=set(modules) != {"main"}), takes_noise=takes_noise)


def parameters(models: Any) -> dict[str, Any]:
    """Return the parameters of a module by plain name, or of several by model key and name; a tied one once.

    They are the module's own: ``init`` copies them, unless the run is differentiable.

    >>> list(parameters(nn.Linear(1, 1)))
    ['weight', 'bias']
    """
    return handed_out(FrozenMap(parameters_of(keyed(models, nn.Module, "models"))))


def buffers(models: Any) -> dict[str, Any]:
    """Return the buffers of a module by plain name, or of several by model key and name.

    >>> list(buffers(nn.BatchNorm1d(1)))
    ['running_mean', 'running_var', 'num_batches_tracked']
    """
    return handed_out(FrozenMap(buffers_of(keyed(models, nn.Module, "models"))))


class Functional:
    """What :func:`functional` returns.

    Attributes:
        takes_noise: whether the engine hands a :class:`Noise` over.

    >>> functional(nn.Linear(2, 1), nn.MSELoss()).takes_noise, functional(nn.Dropout(), nn.MSELoss()).takes_noise
    (False, True)
    """

    def __init__(self, modules: Mapping[str, nn.Module], loss: Loss, *, takes_noise: bool) -> None:
        """Find out under which names the modules hold each tensor."""
        self.takes_noise = takes_noise
        self._whole = _Whole(modules, loss)
        places = places_of(self._whole)
        self._params = placed(parameters_of(modules), places)
        self._buffers = placed(buffers_of(modules), places)

    def __call__(self, params: Any, buffers: Any, batch: Any, rng: Noise | None = None) -> tuple[Tensor, Any]:
        """Return the loss and the buffers after the forward; what is passed stays as it is.

        Raises:
            KeyError: parameters or buffers by other names than the modules have.
            ValueError: no ``rng``, though the module draws.
        """
        tensors = filled(self._params, params, "params")
        tensors |= filled(self._buffers, _tree.map_leaves(torch.clone, taken_in(buffers or {})), "buffers")
        with self._drawing(rng):
            loss = explained("the loss", functional_call, self._whole, tensors, (batch,), tie_weights=False)
        # functional_call puts into the mapping what a forward has assigned.
        after = {key: {name: tensors[at[0]] for name, at in held.items()} for key, held in self._buffers.items()}
        return loss, handed_out(FrozenMap(after))

    def _drawing(self, rng: Noise | None) -> AbstractContextManager[Any]:
        """Return what gives the modules their randomness."""
        return Drawing(rng) if self.takes_noise else nullcontext()


class _Whole(nn.Module):
    """All modules and the loss as one module, so that one ``functional_call`` serves whatever the loss does."""

    def __init__(self, modules: Mapping[str, nn.Module], loss: Loss) -> None:
        super().__init__()
        self.keys, self.loss = tuple(modules), (loss,)  # in a tuple, since a module among the losses is no part
        for place, module in enumerate(modules.values()):
            self.add_module(str(place), module)

    def forward(self, batch: Any) -> Tensor:
        """Return the loss of a batch."""
        parts = {key: getattr(self, str(place)) for place, key in enumerate(self.keys)}
        return self.loss[0](parts["main"] if self.keys == ("main",) else parts, batch)


def _chosen_loss(criterion: Loss | None, loss_fn: Loss | None, *, several: bool) -> Loss:
    """Return ``(model, batch) -> loss`` from whichever was given."""
    given = criterion if loss_fn is None else loss_fn
    if given is None or not callable(given) or (criterion is not None and loss_fn is not None):
        msg = "functional needs a criterion(output, target) or a loss_fn(model, batch), one of the two"
        raise TypeError(msg)
    if isinstance(given, nn.Module) and any(leaf.requires_grad for leaf in given.parameters()):
        msg = (
            f"{type(given).__name__} has parameters of its own, which would not be trained; name it among the models, "
            'as in functional({"model": model, "criterion": criterion}, loss_fn=...)'
        )
        raise ValueError(msg)
    return _supervised(given) if loss_fn is None and not several else given


def _supervised(criterion: Loss) -> Loss:
    """Return the loss of a model on a batch of inputs and a target."""

    def loss(model: Any, batch: Any) -> Tensor:
        if not isinstance(batch, tuple | list):
            msg = (
                f"a criterion(output, target) needs a batch (inputs..., target), got {type(batch).__name__}; "
                "pass functional(module, loss_fn=...) with a loss_fn(model, batch) instead"
            )
            raise TypeError(msg)
        *inputs, target = cast("list[Any]", batch)
        return criterion(model(*inputs), target)

    return loss
