"""Which optimizer holds which parameter, and what no optimizer may hold."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from functrain._owners import Owners
from functrain.shell.models import Models


def owners_of(optimizers: Mapping[str, Optimizer], models: Models) -> Owners:
    """Return which optimizer holds which parameter."""
    table: dict[str, list[tuple[str, str]]] = {key: [] for key in optimizers}
    owner: dict[int, str] = {}
    places = {id(leaf): (key, name) for key, name, leaf in models.places}
    for key, optimizer in optimizers.items():
        if isinstance(optimizer, LBFGS):
            msg = f"optimizer {key!r} is LBFGS, which calls the model several times per step; a hook cannot veto that"
            raise ValueError(msg)  # noqa: TRY004 - the type is an optimizer, its way of stepping is what is refused
        for leaf in (leaf for group in optimizer.param_groups for leaf in group["params"]):
            table[key].append(_placed(leaf, key, owner, places))
    return Owners(table)


def _placed(leaf: Tensor, key: str, owner: dict[int, str], places: Mapping[int, tuple[str, str]]) -> tuple[str, str]:
    """Return the place of a parameter, and claim it for one optimizer."""
    if id(leaf) not in places:
        msg = (
            f"optimizer {key!r} holds a parameter of shape {tuple(leaf.shape)} that belongs to none of the models "
            f"{sorted({model for model, _ in places.values()})}, so hooks could not see it; put it into a module and "
            "pass that as a model"
        )
        raise ValueError(msg)
    place = places[id(leaf)]
    if id(leaf) in owner:
        msg = (
            f"optimizers {owner[id(leaf)]!r} and {key!r} both hold "
            f'state.params["{place[0]}"]["{place[1]}"]; it would be updated twice per step; give it to one of them'
        )
        raise ValueError(msg)
    owner[id(leaf)] = key
    return place
