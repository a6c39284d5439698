"""What the picture of a run shows of its micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from functrain.shell.record import SKIPPED_BY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Records: TypeAlias = list[dict[str, Any]]

FAR = 1e150
STAGES = {"DO_BACKWARD": "batch dropped", "DO_OPTIMIZER_STEP": "step vetoed"}
COLORS = {"DO_BACKWARD": "tab:red", "DO_OPTIMIZER_STEP": "tab:orange"}


def draw_loss(axes: Axes, records: Records) -> None:
    """Draw the loss as the user computed it, and as the hooks returned it where that is another one."""
    changed = [each for each in records if _differ(each.get("loss"), each.get("final_loss"))]
    _line(axes, records, "loss", label="raw" if changed else None, color="tab:blue")
    if changed:
        _line(axes, records, "final_loss", label="transformed by hooks", color="tab:purple", linestyle="--")
    _mark_non_finite(axes, records, "loss")
    _log_if_positive(axes)
    axes.set_ylabel("loss")


def draw_norm(axes: Axes, records: Records) -> None:
    """Draw the gradient norm before clipping, and the limit."""
    _line(axes, records, "grad_norm", label="before clipping", color="tab:blue")
    _line(axes, records, "grad_limit", label="limit", color="tab:red", linestyle="--", drawstyle="steps-mid")
    _mark_non_finite(axes, [each for each in records if _is_known(each.get("grad_norm"))], "grad_norm")
    _log_if_positive(axes)
    axes.set_ylabel("global gradient norm")


def draw_scale(axes: Axes, records: Records) -> None:
    """Draw the loss scale of mixed precision, which moves by powers of two."""
    _line(axes, records, "scale", color="tab:green", drawstyle="steps-post")
    _log_if_positive(axes, base=2)
    axes.set_ylabel("loss scale (factor)")


def draw_skips(axes: Axes, records: Records) -> None:
    """Mark each batch that a hook dropped, and each step that it vetoed: a line of marks for each hook."""
    vetoes = list(dict.fromkeys(veto for each in records for veto in each.get(SKIPPED_BY, ())))
    for height, veto in enumerate(vetoes):
        hit = [_batch(each, place) for place, each in enumerate(records) if veto in each.get(SKIPPED_BY, ())]
        axes.scatter(hit, [height] * len(hit), marker="|", s=90, color=COLORS.get(veto.partition("@")[2], "tab:gray"))
    axes.set_yticks(range(len(vetoes)), [_told(veto) for veto in vetoes])
    axes.set_ylim(len(vetoes) - 0.5, -0.5)
    axes.set_ylabel("skips")


def _told(veto: str) -> str:
    """Return a veto in words.

    >>> _told("finite@DO_BACKWARD").splitlines()
    ['finite:', 'batch dropped']
    """
    hook, _, stage = veto.partition("@")
    return f"{hook}:\n{STAGES.get(stage, stage)}"


def _batch(record: dict[str, Any], place: int) -> Any:
    """Return where a record is drawn."""
    return record.get("batch", place + 1)


def _line(axes: Axes, records: Records, name: str, **style: Any) -> None:
    """Draw the finite values of one number; nothing if there are none."""
    found = [(_batch(each, at), drawable(each[name])) for at, each in enumerate(records) if is_finite(each.get(name))]
    if found:
        alone = "o" if len(found) == 1 else None
        axes.plot([x for x, _ in found], [y for _, y in found], linewidth=0.9, marker=alone, markersize=3, **style)


def _mark_non_finite(axes: Axes, records: Records, name: str) -> None:
    """Mark below where a number was not finite."""
    hit = [_batch(each, place) for place, each in enumerate(records) if name in each and not is_finite(each[name])]
    if hit:
        below: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.scatter(hit, [0.03] * len(hit), marker="x", s=18, color="tab:red", label="not finite", **below)


def _log_if_positive(axes: Axes, base: int = 10) -> None:
    """Use a logarithmic scale where all that is drawn is positive."""
    drawn: list[Any] = [y for line in axes.get_lines() for y in cast("Iterable[Any]", line.get_ydata())]
    if drawn and min(drawn) > 0:
        axes.set_yscale("log", base=base)


def drawable(number: float) -> float:
    """Return a finite number within what axes with a margin can show.

    >>> drawable(0.5), drawable(-1e300)
    (0.5, -1e+150)
    """
    return max(-FAR, min(number, FAR))


def is_finite(value: Any) -> bool:
    """Tell whether a value is a finite number, which an int always is.

    >>> is_finite(10**400), is_finite(float("inf")), is_finite("0.5")
    (True, False, False)
    """
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _is_known(norm: Any) -> bool:
    """Tell whether a norm was measured: NaN stands for none."""
    return isinstance(norm, int | float) and norm == norm  # noqa: PLR0124 - NaN is no number that equals itself


def _differ(raw: Any, final: Any) -> bool:
    """Tell whether two losses are both there and are not the same number."""
    return is_finite(raw) and is_finite(final) and raw != final
