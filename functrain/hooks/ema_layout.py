"""Averages from elsewhere: the layout in which nvalchemi-toolkit's ``EMAHook.state_dict()`` keeps them.

The six fields of the hook, and ``averaged_model_state``: the state dict of a ``torch.optim.swa_utils.AveragedModel``,
with ``n_averaged`` and every tensor under ``module.``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from functrain._tree import FrozenMap
from functrain.hooks.average import Average

SETTINGS = ("model_key", "decay", "update_every", "start_step", "use_buffers")
KNOWN = (*SETTINGS, "num_updates", "averaged_model_state")


def with_stored(hook: Average, slot: Any, stored: Mapping[str, Any]) -> Any:
    """Return the slot of an EMA with what was stored; checked whole before anything is taken.

    Missing settings are ignored, ``num_updates`` overwrites if present. Without an averaged state the next update
    copies again.

    Raises:
        ValueError: a setting that differs from the hook's: both values and the remedy.
        KeyError: a key or a tensor that nobody knows, or a tensor that is missing.

    >>> import torch
    >>> from functrain import EMA
    >>> hook = EMA(decay=0.5)
    >>> slot = FrozenMap({"shadow": FrozenMap({"w": torch.zeros(1)}), "buffers": FrozenMap(), "n_averaged": 0})
    >>> average = {"n_averaged": torch.tensor(2), "module.w": torch.ones(1)}
    >>> with_stored(hook, slot, {"decay": 0.5, "averaged_model_state": average})["shadow"]["w"]
    tensor([1.])
    """
    if unknown := sorted(stored.keys() - set(KNOWN)):
        msg = f"the stored average of {hook.name!r} has keys that nobody knows: {unknown}; known are {sorted(KNOWN)}"
        raise KeyError(msg)
    _check_settings(hook, stored)
    counts = {"num_updates": int(stored["num_updates"])} if "num_updates" in stored else {}
    if "averaged_model_state" not in stored:
        return slot | {**counts, "n_averaged": 0}
    return slot | {**counts, **_averages(hook, slot, stored["averaged_model_state"])}


def _check_settings(hook: Average, stored: Mapping[str, Any]) -> None:
    """Refuse what was averaged by another rule."""
    for name in SETTINGS:
        if name in stored and stored[name] != (current := getattr(hook, name, None)):
            msg = (
                f"checkpoint conflict in {hook.name!r}: {name}={stored[name]!r} in the checkpoint and "
                f"{name}={current!r} in the pipeline; construct the hook with the stored value"
            )
            raise ValueError(msg)


def _averages(hook: Average, slot: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return shadow, buffers and count from the state of an averaged model."""
    tensors = {name.removeprefix("module."): value for name, value in stored.items() if name != "n_averaged"}
    expected = {*slot["shadow"], *slot["buffers"]}
    if tensors.keys() != expected:
        odd = sorted(tensors.keys() ^ expected)
        msg = f"the stored average of {hook.name!r} and the model do not hold the same tensors; on one side only: {odd}"
        raise KeyError(msg)
    parts = {kind: _like(slot[kind], tensors) for kind in ("shadow", "buffers")}
    return {**parts, "n_averaged": int(stored["n_averaged"])}


def _like(current: FrozenMap[Tensor], stored: Mapping[str, Tensor]) -> FrozenMap[Tensor]:
    """Return copies of stored tensors, on the device and in the dtype of the current ones."""
    return FrozenMap(
        {name: stored[name].detach().to(leaf.device, leaf.dtype, copy=True) for name, leaf in current.items()}
    )
