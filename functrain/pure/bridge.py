"""From one interpreter to the other, and back, in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from functrain import _tree
from functrain._clock import any_of
from functrain._owners import Owners
from functrain._state import TrainState
from functrain._tree import FrozenMap
from functrain.pure.naming import Named
from functrain.pure.numbers import is_number, tensored
from functrain.pure.setup import loss_dtype
from functrain.pure.stepping import numbers_of
from functrain.pure.torch_state import pure_state, write_torch_state
from functrain.pure.unused import Place

if TYPE_CHECKING:
    from functrain.shell.apply import Applier
    from functrain.shell.shell import Shell


def to_pure(state: TrainState, applier: Applier) -> TrainState:
    """Return a shell's state in the form of the pure engine: copies, numbers as tensors, optimizer state included.

    A parameter without a gradient gets one of zeros; a frozen one, and one that has never had a gradient while others
    of its optimizer have had one, is left out. Before the first micro-batch nobody has had one: call
    ``init(params, buffers, batch=batch)`` then. The learning rate becomes the number that it is now: give the pure
    optimizer a schedule where a scheduler should go on.

    Raises:
        ValueError: an optimizer that has no pure counterpart.
    """
    trained = _trained(applier)
    unused = _unused(applier, trained)
    used = _those(trained, lambda place: place not in unused)
    owned = {key: _places(applier, key, used) for key in applier.optimizers.by_key}
    opt = {
        key: pure_state(optimizer, key, owned[key], int(state.clock.optimizer_steps[key]))
        for key, optimizer in applier.optimizers.by_key.items()
    }
    grads = {
        model: {name: state.grads[model].get(name, torch.zeros_like(leaf)) for name, leaf in held.items()}
        for model, held in used.items()
    }
    hyper = {key: {"0": numbers_of(memory)} for key, memory in opt.items()}
    whole = state.replace(opt=FrozenMap(opt), grads=FrozenMap(grads), hyper=FrozenMap(hyper), batch=FrozenMap())
    kind = loss_dtype(state.params)
    whole = whole.replace(owners=Owners(owned), loss=state.loss.to(kind), raw_loss=state.raw_loss.to(kind))
    device = next((leaf.device for leaf in _tree.leaves(state.params)), None)
    return tensored(_tree.map_leaves(_copied, whole.replace(donated=False)), device)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _those(tensors: Named, wanted: Callable[[Place], bool]) -> Named:
    """Return some of the tensors, by model and name."""
    return {
        model: {name: leaf for name, leaf in held.items() if wanted((model, name))} for model, held in tensors.items()
    }


def _places(applier: Applier, key: str, among: Named) -> dict[Place, Tensor]:
    """Return the live parameters of an optimizer that are among some, by model and name."""
    table = applier.optimizers.owners.table[key]
    return {(model, name): among[model][name] for model, name in table if name in among[model]}


def _trained(applier: Applier) -> Named:
    """Return the live parameters that are trained, by model and name."""
    live = applier.models.live
    return {model: {name: leaf for name, leaf in held.items() if leaf.requires_grad} for model, held in live.items()}


def _unused(applier: Applier, trained: Named) -> set[Place]:
    """Return the parameters that have had no gradient so far, of optimizers that others have given one."""
    optimizers, found = applier.optimizers, set[Place]()
    unreached = {(model, name) for model, name, _ in applier.models.unreached}
    for key, optimizer in optimizers.by_key.items():
        places = _places(applier, key, trained)
        without = {place for place, leaf in places.items() if place in unreached and not optimizer.state.get(leaf)}
        found |= without if len(without) < len(places) else set()
    return found


def to_shell(
    state: TrainState,
    models: Any,
    optimizers: Any,
    schedulers: Any = None,
    scaler: torch.amp.GradScaler | None = None,
    *,
    hooks: Any,
) -> Shell:
    """Return a shell that goes on where a pure run has come to, on real modules and optimizers.

    Args:
        state: of the pure engine.
        models: as for :class:`functrain.Shell`; their weights are overwritten.
        optimizers: SGD, Adam or AdamW by the same keys; their state is overwritten.
        schedulers: fresh ones are set to the step that the run has come to.
        scaler: takes over the scale.
        hooks: the pipeline of the pure run: a state does not hold it.

    Raises:
        ValueError: an optimizer that has no pure counterpart.

    >>> from functrain import ClipNorm, pure
    >>> model, clip = torch.nn.Linear(1, 1), ClipNorm(max_norm=1.0)
    >>> init, step, _ = pure.train_step(pure.functional(model, torch.nn.MSELoss()), pure.sgd(0.1), clip)
    >>> state = step(init(pure.parameters(model)), (torch.ones(1, 1), torch.ones(1, 1)))
    >>> shell = to_shell(state, model, torch.optim.SGD(model.parameters(), lr=0.1), hooks=clip)
    >>> shell.state.clock.step, torch.equal(model.weight, state.params["main"]["weight"])
    (1, True)

    See also: ``Shell.to_pure``.
    """
    from functrain.shell.shell import Shell

    shell = Shell(models, optimizers, hooks, schedulers, scaler)
    driver = shell._driver  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the other half of the shell
    first, applier = driver.state, driver.applier
    fields = ("window", "clock", "hooks", "scaler", "vetoes", "stepped", "metrics", "loss", "raw_loss", "rng")
    changes = {name: _like(getattr(first, name), getattr(state, name)) for name in fields}
    keeps = bool(state.window.entered > 0) or bool(any_of(state.stepped))
    grads = _tree.map_leaves(_copied, state.grads) if keeps else first.grads
    driver.state = applier.write(first.replace(params=state.params, buffers=state.buffers, grads=grads, **changes))
    models = applier.models
    models.unreached = [place for place in models.places if place[1] not in state.grads[place[0]]]
    used = _those(_trained(applier), lambda place: place[1] in state.grads[place[0]])
    for key, optimizer in applier.optimizers.by_key.items():
        write_torch_state(optimizer, key, _places(applier, key, used), state.opt[key])
    driver.read_hyper()
    _advance_schedulers(applier, driver.state)
    applier.show_scale(driver.state)
    return shell


def _like(first: Any, value: Any) -> Any:
    """Return a value with numbers where the first state has numbers, and copies of tensors where it has tensors."""
    return _tree.map_leaves(_like_leaf, first, value)


def _like_leaf(first: Any, value: Any) -> Any:
    if isinstance(first, Tensor):
        return value.detach().clone()
    return value.item() if is_number(value) else value


def _advance_schedulers(applier: Applier, state: TrainState) -> None:
    """Tell fresh schedulers how often their optimizers have stepped; the rates are already in the groups."""
    for key, scheduler in applier.optimizers.schedulers.items():
        if scheduler is not None and hasattr(scheduler, "last_epoch"):
            steps = int(state.clock.optimizer_steps[key])
            rates = [group["lr"] for group in applier.optimizers.by_key[key].param_groups]
            kept = scheduler.state_dict()
            scheduler.load_state_dict({**kept, "last_epoch": steps, "_step_count": steps + 1, "_last_lr": rates})
