"""What a sweep returns."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from functrain import Accumulate, SkipNonFinite, pure
from functrain.pure import table as tables
from functrain.pure.heat_map import draw
from tests.pure.sweeping import swept, tiny
from tests.show.reading import parsed

NAN = float("nan")
OVER = pure.grid({"lr": [0.1, 0.2, 1e200], "seed": [0, 1]})


@pytest.fixture(scope="module")
def table() -> pure.SweepTable:
    """Return a table of six lanes of which two are dead."""
    return swept(tiny(), OVER, [torch.tensor(value) for value in (1.0, 1.0, 1.0)])


def test_a_record_per_lane(table: pure.SweepTable) -> None:
    """Lane, what was set, and how it fared; plain numbers, in the order of the lanes."""
    records = table.to_records()
    expected = ["lane", "lr", "seed", "loss", "mean_loss", "steps", "skips", "batches", "dead"]
    assert [list(record) for record in records] == [expected] * 6
    assert [(record["lr"], record["seed"]) for record in records] == [tuple(lane.values()) for lane in OVER]
    kinds = [int, float, int, float, float, int, int, int, bool]
    assert [type(value) for value in records[0].values()] == kinds
    assert [*table] == records
    assert len(table) == 6


def test_records_are_copies(table: pure.SweepTable) -> None:
    """Writing into what was handed out changes nothing."""
    table.to_records()[0]["lr"] = table.best()["lr"] = "spoiled"
    assert "spoiled" not in table.column("lr")


def test_losses_are_those_of_the_run(table: pure.SweepTable) -> None:
    """A weight that starts at 0 and is pulled to 1: (1 - 2 lr)^2k after k steps."""
    expected = [(1 - 0.2) ** (2 * step) for step in range(3)]
    assert table.losses[0].tolist() == pytest.approx(expected)
    assert table.rows[0]["loss"] == pytest.approx(expected[-1])
    assert table.rows[0]["mean_loss"] == pytest.approx(sum(expected) / 3)


def test_a_dropped_micro_batch_is_not_in_the_losses_of_a_record() -> None:
    """Neither the last loss nor the mean hears of it; the curve shows it."""
    run = tiny([SkipNonFinite()])
    found = swept(run, {"lr": [0.0]}, [torch.tensor(value) for value in (1.0, NAN, 3.0, NAN)])
    assert (found.column("loss"), found.column("mean_loss")) == ([9.0], [5.0])
    assert [isnan(loss) for loss in found.losses[0].tolist()] == [False, True, False, True]


def test_a_lane_without_any_loss_shows_nan() -> None:
    """Everything was dropped: there is no loss, which is not zero."""
    found = swept(tiny([SkipNonFinite()]), {"lr": [0.1]}, [torch.tensor(NAN)] * 2)
    assert isnan(found.rows[0]["loss"])
    assert isnan(found.rows[0]["mean_loss"])
    assert not found.rows[0]["dead"]


def test_the_best_lane_lives(table: pure.SweepTable) -> None:
    """The smallest or the largest value among the living; the dead do not compete."""
    assert table.best()["lr"] == 0.2
    assert table.best("loss", largest=True)["lr"] == 0.1
    assert table.best("lr", largest=True)["lr"] == 0.2
    with pytest.raises(KeyError, match=r"no column 'accuracy'; there are \['lane', 'lr'"):
        table.best("accuracy")


def test_a_lane_is_a_state_that_goes_on(table: pure.SweepTable) -> None:
    """It steps like any state, and shares no memory with the table."""
    run, state = tiny(lr=5.0), table.state(0)
    after = run.step(state, torch.tensor(1.0))
    assert after.clock.step == 4
    state.params["main"]["w"].fill_(7.0)
    assert table.states.params["main"]["w"][0] != 7.0
    with pytest.raises(IndexError, match="no lane 6; there are 6"):
        table.state(6)


@pytest.mark.parametrize("max_lanes", [None, 1, 4])
def test_a_function_of_the_final_state_is_a_column(table: pure.SweepTable, max_lanes: int | None) -> None:
    """One value per lane, under vmap; the old table stays as it is."""
    found = table.measured("weight", lambda state: state.params["main"]["w"], max_lanes)
    assert found.column("weight")[:4] == pytest.approx([1 - 0.8**3] * 2 + [1 - 0.6**3] * 2)
    assert "weight" not in table.rows[0]
    assert found.best("weight", largest=True)["lr"] == 0.2
    with pytest.raises(ValueError, match="there is a column 'loss' already"):
        table.measured("loss", lambda state: state.loss)


def test_the_text_has_a_line_per_lane(table: pure.SweepTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn by rich where there is rich, aligned columns where there is none."""
    drawn = str(table)
    assert all(name.split("_")[-1] in drawn for name in table.rows[0])
    assert drawn.count("1e+200") == 2
    monkeypatch.setattr(tables, "find_spec", lambda _: None)
    lines = str(table).splitlines()
    assert len(lines) == 7
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split()[:3] == ["0", "0.1", "0"]


def test_a_console_of_rich_shows_it(table: pure.SweepTable) -> None:
    """Printing the table itself gives a table, of which a terminal of 80 columns cuts nothing off."""
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(table)
    shown = capture.get()
    assert "batches" in shown
    assert "…" not in shown


def test_its_repr_is_one_line(table: pure.SweepTable) -> None:
    """Sizes only."""
    assert repr(table).startswith("SweepTable(6 lanes, 2 dead, columns=['lane', 'lr', 'seed', 'loss'")


def test_a_notebook_shows_it(table: pure.SweepTable) -> None:
    """As a table with the cells of the text, well formed and without a script."""
    page = parsed(table._repr_html_())
    assert "<table>" in table._repr_html_()
    assert page is not None
    assert all(f">{shown}<" in table._repr_html_() for shown in map(tables.shown, table.rows[0].values()))


def test_a_heat_map_averages_and_crosses_out(table: pure.SweepTable, tmp_path: Path) -> None:
    """Cells are means over the living lanes, sorted along the axes; dead ones bear a cross; missing ones nothing."""
    figure = table.heat_map("lr", "seed", "steps", tmp_path / "map.png")
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("lr", "seed")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "0.2", "1e+200"]
    cells = axes.images[0].get_array()
    assert cells.tolist() == [[3.0, 3.0, None], [3.0, 3.0, None]]
    assert [text.get_text() for text in axes.texts] == ["3", "3", "x"] * 2
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_a_heat_map_of_zipped_lanes_has_holes() -> None:
    """Pairs that were not run stay empty, without a cross; several lanes of one cell are averaged."""
    over: Any = [{"lr": 0.1, "weight_decay": 0.0, "seed": 0}, {"lr": 0.1, "weight_decay": 0.0, "seed": 1}]
    over += [{"lr": 0.2, "weight_decay": 0.5, "seed": 0}]
    found = swept(tiny([Accumulate(every=1)]), over, [torch.tensor(1.0)]).measured("seeds", lambda state: state.rng)
    axes = draw(found, "lr", "weight_decay", "seeds").axes[0]
    assert axes.images[0].get_array().tolist() == [[0.5, None], [None, 0.0]]
    assert [text.get_text() for text in axes.texts] == ["0.5", "0"]


def test_a_heat_map_needs_two_columns_that_are_there(table: pure.SweepTable) -> None:
    """Typing errors are told with the columns."""
    with pytest.raises(KeyError, match="no column 'rate'"):
        table.heat_map("rate", "seed")
    with pytest.raises(ValueError, match="x and y are both 'lr'"):
        table.heat_map("lr", "lr")


def test_progress_shows_batches_and_deaths(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar counts batches over all epochs."""
    swept(tiny(), {"lr": [0.1, 1e200]}, [torch.ones(())] * 3, epochs=2, progress=True)
    assert "6/6" in capsys.readouterr().err
