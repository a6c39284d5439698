"""The picture of a run has a panel for what there is, and shows where it happened."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from functrain import (
    EMA,
    Accumulate,
    ClipNorm,
    History,
    MixedPrecision,
    Outcome,
    SkipNonFinite,
    Stage,
    TrainState,
    fit,
    hook,
)
from tests.scalars import Weight, sgd_shell

NAN, INF = math.nan, math.inf


def panels(history: History) -> dict[str, Axes]:
    """Return the panels by what is drawn, after all has been rendered, which is where odd numbers would raise."""
    figure = history.plot()
    figure.savefig(BytesIO(), format="png")
    return {axes.get_ylabel(): axes for axes in figure.axes}


def labels(axes: Axes) -> list[str]:
    """Return what a legend says."""
    legend = axes.get_legend()
    return [] if legend is None else [each.get_text() for each in legend.get_texts()]


def history_of(*hooks: Any, slopes: Any = (1.0, 2.0), **options: Any) -> History:
    """Return the history of two epochs."""
    shell = sgd_shell(Weight(5.0), list(hooks))
    return fit(shell, list(slopes), lambda model, slope: model(slope), 2, progress=False, **options)


def test_an_empty_history_says_so() -> None:
    """One panel, without ticks, with a sentence."""
    (axes,) = panels(History()).values()
    assert [text.get_text() for text in axes.texts] == ["nothing has been recorded"]


def test_a_plain_run_has_a_loss_only() -> None:
    """No norm was measured, nothing was scaled, skipped or validated."""
    found = panels(history_of())
    assert list(found) == ["loss"]
    (line,) = found["loss"].get_lines()
    assert line.get_xydata().tolist() == [[1.0, 5.0], [2.0, 8.0], [3.0, 2.0], [4.0, 2.0]]
    assert labels(found["loss"]) == []
    assert found["loss"].get_xlabel() == "micro-batches seen"


@hook(stages=Stage.DO_BACKWARD)
def doubled(state: TrainState, stage: Stage, will_skip: Any) -> Any:
    """Return twice the loss."""
    return Outcome(state, True, state.loss * 2.0)


def test_a_transformed_loss_stands_beside_the_raw_one() -> None:
    """Two lines, and words that say which is which."""
    loss = panels(history_of(doubled))["loss"]
    raw, final = (np.asarray(line.get_ydata()) for line in loss.get_lines())
    assert (final == 2.0 * raw).all()
    assert labels(loss) == ["raw", "transformed by hooks"]


def test_every_part_of_a_run_has_its_panel(tmp_path: Path) -> None:
    """In the order of an update, and the file is a picture."""
    history = history_of(
        MixedPrecision(precision="fp16"),
        ClipNorm(max_norm=1.5),
        SkipNonFinite(),
        EMA(decay=0.5),
        slopes=(1.0, NAN, 2.0),
        validate=lambda _model: {"accuracy": 0.5},
    )
    found = panels(history)
    assert list(found) == ["loss", "global gradient norm", "loss scale (factor)", "skips", "validation score"]
    shown = history.plot(tmp_path / "run.png")._repr_png_()
    assert {shown[:4], (tmp_path / "run.png").read_bytes()[:4]} == {b"\x89PNG"}


def test_the_norm_of_a_window_is_drawn_where_it_was_measured() -> None:
    """Between boundaries there is none, and the line goes on."""
    norm = panels(history_of(Accumulate(every=2), ClipNorm(max_norm=9.0), slopes=(1.0, 3.0)))["global gradient norm"]
    assert norm.get_lines()[0].get_xydata().tolist() == [[2.0, 2.0], [4.0, 2.0]]


def test_skips_are_marked_at_their_batch_in_a_row_for_each_hook() -> None:
    """Who, what and when."""
    skips = panels(history_of(SkipNonFinite(), slopes=(1.0, NAN, 2.0, INF)))["skips"]
    assert [each.get_text() for each in skips.get_yticklabels()] == ["finite:\nbatch dropped"]
    (marks,) = skips.collections
    assert np.asarray(marks.get_offsets()).tolist() == [[2.0, 0.0], [4.0, 0.0], [6.0, 0.0], [8.0, 0.0]]


def test_marks_tell_averaged_weights_from_raw_ones() -> None:
    """A full mark is of averaged weights, an empty one of the weights themselves."""
    places = [{"epoch": 0, "step": 1, "validated_with": "raw"}, {"epoch": 1, "step": 2, "validated_with": "ema"}]
    scores = panels(History([], [{"accuracy": 0.5, **places[0]}, {"accuracy": 0.75, **places[1]}]))["validation score"]
    assert labels(scores) == ["accuracy", "raw weights", "averaged weights"]
    points = {tuple(map(float, point)): each for each in scores.collections for point in np.asarray(each.get_offsets())}
    empty, full = (points[point].get_facecolor() for point in ((1.0, 0.5), (2.0, 0.75)))
    color = matplotlib.colors.to_rgba(scores.get_lines()[0].get_color())
    assert (tuple(np.ravel(empty)), tuple(np.ravel(full))) == ((1.0, 1.0, 1.0, 1.0), color)


def test_models_that_were_validated_together_are_averaged_if_one_is() -> None:
    """Of several models it is told by key."""
    held = {"validated_with": {"a": "raw", "b": "ema"}, "epoch": 0, "step": 1}
    assert labels(panels(History([], [{"x": 1.0, **held}]))["validation score"]) == ["x", "averaged weights"]


@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.0, -1.0, 1e308, -1e308, 5e-324, True])
@pytest.mark.parametrize("others", [[], [2.0, 3.0], [NAN]])
def test_no_number_breaks_the_picture(value: float, others: list[float]) -> None:
    """Whatever stands where; what is not finite is a cross below."""
    names = ("loss", "final_loss", "grad_norm", "grad_limit", "scale")
    losses = [*others, value, *others]
    records = [{**dict.fromkeys(names, each), "batch": at} for at, each in enumerate(losses)]
    history = History(records, [{"score": each, "epoch": 0, "step": at} for at, each in enumerate(losses)])
    found = panels(history)
    assert list(found) == ["loss", "global gradient norm", "loss scale (factor)", "validation score"]
    crosses = [point for each in found["loss"].collections for point in np.asarray(each.get_offsets())[:, 0]]
    assert crosses == [at for at, each in enumerate(losses) if not math.isfinite(each)]


def test_records_without_a_loss_or_a_batch_are_drawn_as_far_as_they_go() -> None:
    """A history can be made by hand."""
    found = panels(History([{"loss": torch.tensor(1.0)}, {"skipped_by": ("mine@SOMEWHERE",)}, {"loss": 2.0}]))
    assert list(found) == ["loss", "skips"]
    assert found["loss"].get_lines()[0].get_xydata().tolist() == [[1.0, 1.0], [3.0, 2.0]]
    assert [each.get_text() for each in found["skips"].get_yticklabels()] == ["mine:\nSOMEWHERE"]
