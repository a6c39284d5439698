"""What an average of weights must do, whatever the decay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from functrain import EMA, Hook, Lookahead, Stage
from functrain._tree import paths
from functrain.hooks.average import Average
from functrain.testing.breach import Breach, require_same
from functrain.testing.law import Law
from functrain.testing.scene import Scene


def is_average(hook: Hook) -> bool:
    """Tell an average that is in no wrapper."""
    return isinstance(hook, Average)


def starts_anew(hook: Hook) -> bool:
    """Tell an average in which nothing is left of what was there before its first update."""
    begins = isinstance(hook, Lookahead) or (isinstance(hook, EMA) and hook.first == "lerp")
    return isinstance(hook, Average) and not begins and not hook.finite_only


def _slot(scene: Scene) -> Any:
    return scene.state.hooks[scene.hook.name]


def _averaged(scene: Scene, **changes: Any) -> Any:
    """Return the slot after a step in which every optimizer stepped; ``changes`` are made to the slot before."""
    state = scene.state.with_slot(scene.hook.name, _slot(scene) | changes)
    state = state.replace(stepped=dict.fromkeys(state.stepped, True))
    after = replace(scene, state=state, stage=Stage.AFTER_OPTIMIZER_STEP, will_skip=False, form="python").run().state
    return after.hooks[scene.hook.name]


def average_of(scene: Scene) -> Average:
    """Return the hook of a scene."""
    return cast("Average", scene.hook)


def _copied(scene: Scene) -> Any:
    """Return the slot after a first update, which is due where ``start_step`` is over."""
    hook = average_of(scene)
    return _averaged(scene, n_averaged=0, completed=max(hook.start_step, 1) * hook.update_every - 1)


def check_between(scene: Scene) -> None:
    """Check that no element of the shadow leaves the interval between where it was and the weight."""
    weights = _weights(scene)
    old, new = (paths(slot["shadow"], _root(scene)) for slot in (_slot(scene), _averaged(scene)))
    for (path, after), before, weight in zip(new.items(), old.values(), weights.values(), strict=True):
        if after.is_floating_point() and not _is_between(after.double(), before.double(), weight.double()):
            raise Breach(f"left the interval between {before.tolist()} and the weight", path, weight, after)


def _is_between(after: Tensor, before: Tensor, weight: Tensor) -> bool:
    low, high = torch.minimum(before, weight), torch.maximum(before, weight)
    slack = 1e-6 * torch.maximum(low.abs(), high.abs())
    return bool(((after >= low - slack) & (after <= high + slack) | low.isnan()).all())


def check_fixed_point(scene: Scene) -> None:
    """Check that an average of weights that do not move does not move either."""
    copied, hook = _copied(scene), average_of(scene)
    again = _averaged(scene, **copied | {"completed": copied["completed"] + hook.update_every - 1})
    for (path, was), now in zip(paths(copied["shadow"], _root(scene)).items(), again["shadow"].values(), strict=True):
        if not torch.allclose(was, now, rtol=0.0, atol=0.0, equal_nan=True):  # 0 and -0 are one
            raise Breach("moved although the weights did not", path, was, now)


def check_first(scene: Scene) -> None:
    """Check that the first update is a copy, so that no zero that stood there before weighs in."""
    slot, weights = _copied(scene), _weights(scene)
    expected = {name: leaf.to(slot["shadow"][name].dtype) for name, leaf in weights.items()}
    require_same(expected, dict(slot["shadow"]), "the first update is no copy", _root(scene))


def _weights(scene: Scene) -> dict[str, Tensor]:
    """Return the weights that are averaged."""
    weights = scene.state.params[average_of(scene).model_key]
    return {name: weights[name] for name in _slot(scene)["shadow"]}


def _root(scene: Scene) -> str:
    return f'state.hooks["{scene.hook.name}"]["shadow"]'


BETWEEN = Law("ema: between", "the shadow stays between where it was and the weights", check_between, is_average)
FIXED_POINT = Law("ema: fixed point", "weights that stand still leave the shadow", check_fixed_point, starts_anew)
FIRST = Law("ema: unbiased start", "the first update copies the weights", check_first, starts_anew)
