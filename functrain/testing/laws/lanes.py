"""L8: a lane of a vmapped run is a run alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as torch_pytree

from functrain import Hook, Outcome, Stage, TrainState
from functrain._tree import map_leaves
from functrain.testing.breach import Breach
from functrain.testing.close import require_close
from functrain.testing.forms import cloned, in_form
from functrain.testing.law import Law
from functrain.testing.scene import Scene, outcome_of

SKIPS = torch.tensor([False, True, False])
LANES = len(SKIPS)


def check_lanes(scene: Scene) -> None:
    """Check every claimed stage but SETUP, on three lanes that differ in their real numbers and in ``will_skip``."""
    state = in_form(scene.state, "tensor")
    lanes = [cloned(map_leaves(partial(_varied, place), state)) for place in range(LANES)]
    for stage in Stage:
        if stage in scene.hook.stages and stage is not Stage.SETUP:
            alone = [outcome_of(scene.hook, lanes[place], stage, SKIPS[place], "tensor") for place in range(LANES)]
            for place, found in enumerate(_mapped(scene.hook, stage, lanes)):
                require_close(alone[place], found, f"lane {place} differs from the run alone at {stage.name}")


def _varied(lane: int, leaf: Tensor) -> Tensor:
    """Return what another lane holds in place of a leaf: other real numbers, the same counters."""
    return leaf * (1.0 + 0.5 * lane) if leaf.is_floating_point() else leaf


def _mapped(hook: Hook, stage: Stage, lanes: list[TrainState]) -> list[Outcome]:
    """Run all lanes as one, and take them apart."""

    def call(state: TrainState, will_skip: Tensor) -> tuple[Any, ...]:
        return tuple(in_form(part, "tensor") for part in hook(state, stage, will_skip))

    stacked = torch_pytree.tree_map(lambda *leaves: torch.stack(leaves), *lanes)
    try:
        with torch.no_grad():
            mapped: Any = torch.func.vmap(call)(stacked, SKIPS)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise Breach(f"cannot be vmapped at {stage.name}: {reason}; decide with functrain.select") from error
    return [Outcome(*torch_pytree.tree_map(partial(_taken, place), mapped)) for place in range(LANES)]


def _taken(place: int, leaf: Tensor) -> Tensor:
    return leaf[place]


LANES_ALONE = Law("L8 vmap", "lane i of a vmapped run equals the run of lane i alone", check_lanes, cost=4)
