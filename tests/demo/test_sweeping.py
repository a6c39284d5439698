import json
from pathlib import Path

import pytest
import torch

from functrain import pure
from functrain.__main__ import main
from functrain.demo import extras, sweeping
from functrain.demo.digits import load_digits
from functrain.demo.network import network
from functrain.demo.options import SweepOptions
from functrain.demo.sweeping import held_out_accuracy, swept
from functrain.demo.trial import accuracy


@pytest.fixture(scope="module")
def table() -> pure.SweepTable:
    """Sweep a corner of the map for one epoch: a rate that learns and one that explodes, two decays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "RATES", (0.03, 3.0))
        patch.setattr(sweeping, "DECAYS", (0.0, 0.9))
        return swept(SweepOptions(epochs=1), progress=False)


def test_there_are_64_lanes() -> None:
    """Eight rates by eight decays, none twice."""
    assert len(set(sweeping.RATES)) == len(set(sweeping.DECAYS)) == 8


def test_lanes_that_explode_are_given_up(table: pure.SweepTable) -> None:
    """After eleven skips in a row; the others have made every step of the epoch."""
    assert table.column("dead") == [False, False, True, True]
    assert table.column("skips") == [0, 0, 11, 11]
    assert table.column("steps")[:2] == [23, 23]


def test_lanes_that_live_learn(table: pure.SweepTable) -> None:
    """One epoch is enough to be far above the tenth that guessing gives, and the best lane is one of them."""
    assert all(found > 0.7 for found in table.column("accuracy")[:2])
    assert table.best("accuracy", largest=True)["lr"] == 0.03


def test_the_decay_moves_the_average_only(table: pure.SweepTable) -> None:
    """Lanes of one rate share their weights; their averages differ, except where the decay is 0."""
    first, second = table.state(0), table.state(1)
    weights = [state.params["main"]["digit.weight"] for state in (first, second)]
    assert torch.allclose(*weights, rtol=1e-4, atol=1e-5)
    shadows = [state.hooks["ema"]["shadow"]["digit.weight"] for state in (first, second)]
    assert torch.equal(shadows[0], weights[0])
    assert not torch.allclose(shadows[1], weights[1], rtol=1e-2)


def test_accuracy_under_vmap_is_that_of_the_module(table: pure.SweepTable) -> None:
    """A module that holds a lane's averaged weights gets as many digits right."""
    held_out = load_digits(0).held_out
    for lane in (0, 1):
        slot = table.state(lane).hooks["ema"]
        model = network(sweeping.WIDTH)
        model.load_state_dict({**slot["shadow"], **slot["buffers"]})
        assert accuracy(model, held_out) == table.rows[lane]["accuracy"]
        assert float(held_out_accuracy(model, held_out)(table.state(lane))) == table.rows[lane]["accuracy"]


def test_the_command_shows_and_writes(
    tmp_path: Path, table: pure.SweepTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table, best lane, map and records; the records are those of the table."""
    monkeypatch.setattr(sweeping, "swept", lambda _: table)
    out = tmp_path / "new" / "folder"
    assert main(["sweep", "--epochs", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "accuracy" in shown
    assert "learning rate 0.03" in shown
    assert json.loads((out / "sweep.json").read_text(encoding="utf-8")) == table.to_records()
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_missing_extras_are_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without matplotlib the sweep says what to install and returns 1."""
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "matplotlib" else object())
    assert main(["sweep"]) == 1
    assert "functrain sweep needs matplotlib" in capsys.readouterr().err


@pytest.mark.slow
def test_the_default_sweep_finds_a_good_lane(tmp_path: Path) -> None:
    """64 lanes: sixteen explode, and the best of the others gets 97 % of the digits held out."""
    assert main(["sweep", "--out", str(tmp_path)]) == 0
    records = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert len(records) == 64
    assert sum(record["dead"] for record in records) == 16
    assert max(record["accuracy"] for record in records) > 0.97
