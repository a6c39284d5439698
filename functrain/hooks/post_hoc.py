"""Post-hoc reconstruction: an average of any width from a few power-function averages that were saved on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from functrain.hooks.power_ema import gamma_of


class PowerSnapshot(NamedTuple):
    """A power-function average as it was saved.

    Attributes:
        step: completed steps at that time.
        relative_std: the width with which it was tracked.
        weights: the averaged tensors by name; copies, since ``Shell.averaged_module`` is refreshed in place.

    >>> PowerSnapshot(step=100, relative_std=0.05, weights={"w": torch.ones(1)}).step
    100

    See also: :func:`post_hoc_average`, which takes them.
    """

    step: int
    relative_std: float
    weights: Mapping[str, Tensor]


class Profile(NamedTuple):
    """How much each step counts in an average: as ``t ** gamma``, up to ``step``."""

    step: float
    gamma: float


def post_hoc_average(
    snapshots: Sequence[PowerSnapshot], relative_std: float, step: int | None = None
) -> dict[str, Tensor]:
    """Return the average that a :class:`functrain.PowerEMA` of another width would have had.

    The saved averages are combined so that their profiles come closest, in the sense of least squares, to the one that
    is wished for. Two widths such as .05 and .1, saved a few dozen times, are enough for all between and around.

    Source: Karras et al. 2024 (EDM2), https://arxiv.org/abs/2312.02696, section 3.2 and appendix C.

    Args:
        snapshots: saved averages of one run, of any widths and steps.
        relative_std: the width that is wished for.
        step: completed steps at which the average is wished for; by default those of the last snapshot.

    Returns:
        tensors by name, in the dtypes and on the devices of the last snapshot; sums are taken in double.

    Raises:
        ValueError: no snapshots, snapshots of different tensors, a width that no exponent has, or a step that none of
            them has come to.

    >>> saved = [PowerSnapshot(t, std, {"w": torch.ones(1)}) for t in (100, 200) for std in (0.05, 0.1)]
    >>> post_hoc_average(saved, 0.08)["w"]
    tensor([1.])

    See also: :func:`post_hoc_coefficients`, the numbers alone.
    """
    _check(snapshots)
    places = [(each.step, each.relative_std) for each in snapshots]
    numbers = post_hoc_coefficients(places, relative_std, step)
    return {name: _combined(snapshots, name, numbers) for name in snapshots[-1].weights}


def post_hoc_coefficients(
    saved: Sequence[tuple[int, float]], relative_std: float, step: int | None = None
) -> list[float]:
    """Return what each saved average counts in an average of another width; the numbers sum to one.

    Args:
        saved: steps and widths of the saved averages.
        relative_std: the width that is wished for.
        step: completed steps at which the average is wished for; by default the last one there is.

    Raises:
        ValueError: nothing saved, a width that no exponent has, or a step that none of them has come to.

    >>> [round(each, 2) for each in post_hoc_coefficients([(20, 0.1), (20, 0.05)], 0.08)]
    [0.74, 0.26]
    """
    if not saved:
        msg = (
            "there are no saved averages; track PowerEMA(relative_std=.05) and PowerEMA(relative_std=.1), and save them"
        )
        raise ValueError(msg)
    last = max(each for each, _ in saved)
    wanted = Profile(last if step is None else step, gamma_of(relative_std))
    if not min(each for each, _ in saved) > 0 or not 0 < wanted.step <= last:
        msg = (
            f"the saved averages are of steps {sorted({each for each, _ in saved})}; step={wanted.step} is out of reach"
        )
        raise ValueError(msg)
    known = [Profile(each, gamma_of(std)) for each, std in saved]
    products = torch.tensor([[overlap(a, b) for b in known] for a in known], dtype=torch.float64)
    aims = torch.tensor([[overlap(a, wanted)] for a in known], dtype=torch.float64)
    # Profiles next to each other are almost the same, so the system is almost singular: gelsd looks at its rank.
    solved = cast("Any", torch.linalg).lstsq(products, aims, driver="gelsd")
    found = cast("list[float]", solved.solution[:, 0].tolist())
    return [each / sum(found) for each in found]


def overlap(a: Profile, b: Profile) -> float:
    """Return the integral of the product of two profiles, each with an integral of one.

    >>> overlap(Profile(2.0, 0.0), Profile(4.0, 0.0))
    0.25
    """
    short, long = sorted((a, b), key=lambda each: each.step)
    ratio = (short.step / long.step) ** long.gamma
    return (a.gamma + 1) * (b.gamma + 1) * ratio / ((a.gamma + b.gamma + 1) * long.step)


def _check(snapshots: Sequence[PowerSnapshot]) -> None:
    """Refuse snapshots that do not belong together."""
    for each in snapshots:
        if each.weights.keys() != snapshots[-1].weights.keys():
            odd = sorted(each.weights.keys() ^ snapshots[-1].weights.keys())
            msg = f"the snapshots of steps {each.step} and {snapshots[-1].step} do not both hold {odd}"
            raise ValueError(msg)


def _combined(snapshots: Sequence[PowerSnapshot], name: str, numbers: Sequence[float]) -> Tensor:
    """Return the sum of one tensor over all snapshots, in double."""
    last = snapshots[-1].weights[name]
    if not (last.is_floating_point() or last.is_complex()):
        return last.clone()
    wide = torch.promote_types(last.dtype, torch.float64)
    total = torch.zeros_like(last, dtype=wide)
    for each, number in zip(snapshots, numbers, strict=True):
        total += number * each.weights[name].to(last.device, wide)
    return total.to(last.dtype)
