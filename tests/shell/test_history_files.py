"""A history in a file is read back as it was, by the libraries of those files."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from functrain import ClipNorm, History, SkipNonFinite, fit
from tests.scalars import Weight, sgd_shell


@pytest.fixture
def history() -> History:
    """Two epochs of three batches, the middle one of which is dropped, with a validation each."""
    scores = iter([0.5, 0.75])
    return fit(
        sgd_shell(Weight(), [ClipNorm(max_norm=1.0), SkipNonFinite()]),
        [1.0, float("nan"), 3.0],
        lambda model, slope: model(slope),
        2,
        validate=lambda _model: {"accuracy": next(scores)},
        progress=False,
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_holds_every_number_exactly(history: History, tmp_path: Path) -> None:
    """What Python reads is what was recorded, NaN included; who skipped stands in words."""
    history.to_csv(tmp_path / "run.csv")
    rows = rows_of(tmp_path / "run.csv")
    assert len(rows) == 6
    for row, record in zip(rows, history.records, strict=True):
        for name in ("loss", "final_loss", "lr", "grad_norm", "batch", "step", "epoch", "skipped"):
            found, expected = float(row[name]), float(record[name])
            assert found == expected or (math.isnan(found) and math.isnan(expected))
        assert tuple(row["skipped_by"].split()) == record["skipped_by"]
        assert row["stepped"] == str(record["stepped"])
    assert rows[1]["skipped_by"].split()[0] == "finite@DO_BACKWARD"


def test_a_validation_stands_in_the_last_row_of_its_epoch(history: History, tmp_path: Path) -> None:
    """Elsewhere the cell is empty."""
    history.to_csv(str(tmp_path / "run.csv"))
    rows = rows_of(tmp_path / "run.csv")
    assert [row["validation/accuracy"] for row in rows] == ["", "", "0.5", "", "", "0.75"]


def test_a_validation_without_records_has_its_own_row(tmp_path: Path) -> None:
    """So it is where somebody recorded validations only."""
    History([], [{"accuracy": 0.5, "epoch": 3, "step": 7}]).to_csv(tmp_path / "run.csv")
    assert rows_of(tmp_path / "run.csv") == [{"epoch": "3", "step": "7", "validation/accuracy": "0.5"}]


def test_what_appears_later_has_its_column(tmp_path: Path) -> None:
    """Names with a comma, a quotation mark or a line break are those of the csv module to care for."""
    odd = 'a,"b"\nc'
    History([{"loss": 1.0, "skipped_by": ("a@X", "b@Y")}, {odd: 2.0}]).to_csv(tmp_path / "run.csv")
    assert rows_of(tmp_path / "run.csv") == [
        {"loss": "1.0", "skipped_by": "a@X b@Y", odd: ""},
        {"loss": "", "skipped_by": "", odd: "2.0"},
    ]


def test_an_empty_history_is_an_empty_table(tmp_path: Path) -> None:
    """No row, and no error."""
    History().to_csv(tmp_path / "run.csv")
    assert rows_of(tmp_path / "run.csv") == []


@pytest.fixture
def board(tmp_path: Path) -> Callable[[History], Any]:
    """Write a history for TensorBoard and read it back."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def written(history: History) -> Any:
        history.to_tensorboard(tmp_path)
        return accumulator.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()

    return written


def test_tensorboard_reads_every_number(history: History, board: Callable[[History], Any]) -> None:
    """Over the micro-batches, as float32."""
    found = board(history)
    tags = set(found.Tags()["scalars"])
    assert {"training/loss", "training/lr", "training/grad_norm", "training/stepped", "validation/accuracy"} <= tags
    for name in ("loss", "final_loss", "grad_norm", "stepped"):
        read = {each.step: each.value for each in found.Scalars(f"training/{name}")}
        recorded = {each["batch"]: float(each[name]) for each in history.records}
        assert read == pytest.approx(recorded, nan_ok=True)
    assert [(each.step, each.value) for each in found.Scalars("validation/accuracy")] == [(3, 0.5), (6, 0.75)]
    assert [(each.step, each.value) for each in found.Scalars("skips/finite/DO_BACKWARD")] == [(2, 1.0), (5, 2.0)]


def test_tensorboard_of_an_empty_history_is_empty(board: Callable[[History], Any]) -> None:
    """No tag, and no error."""
    assert board(History()).Tags()["scalars"] == []


def test_without_tensorboard_the_error_says_how_to_get_it(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra, and what is needed to install it can be copied."""
    for name in [each for each in sys.modules if each.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r'pip install "functrain\[tensorboard\]"'):
        history.to_tensorboard(tmp_path)
    assert list(tmp_path.iterdir()) == []
