"""The history of a run goes on where the run does."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from functrain import Checkpoint, ClipNorm, History, SkipNonFinite, Stage, fit, latest, observe
from functrain.disk.history_log import NAME, HistoryLog
from tests.scalars import Weight, sgd_shell

SLOPES = [1.0, math.nan, 3.0]
RHYTHMS = [{"every": 2}, {"every": 1, "keep": 1}, {"every": None, "each_epoch": True}]


class Stop(Exception):  # noqa: N818 - nothing went wrong
    """The process ends here."""


def run(folder: Path | None = None, epochs: int = 3, stop: int = 10**9, **options: Any) -> History:
    """Return the history of a run that ends at the beginning of a batch, or after its epochs."""
    seen: list[int] = []

    def look(_state: Any, _stage: Stage) -> None:
        seen.append(1)
        if len(seen) == stop:
            raise Stop

    hooks = [ClipNorm(max_norm=1.0), SkipNonFinite(), observe("stop", look, stages=Stage.BEFORE_BATCH)]
    saving = None if folder is None else Checkpoint(folder, **{"every": 1, **options.pop("saving", {})})
    scores = {"validate": lambda model: {"w": model.w.detach().double(), "picture": object()}, **options}
    return fit(
        sgd_shell(Weight(), hooks),
        SLOPES,
        lambda model, slope: model(slope),
        epochs,
        progress=False,
        checkpoint=saving,
        **scores,
    )


def numbers(history: History) -> str:
    """Return what a history tells of a run, NaN included; a picture is none of it."""
    records = [{**each, "skipped_by": list(each["skipped_by"])} for each in history.records]
    scores = [{**each, "picture": None} for each in history.validations]
    return json.dumps([records, scores])


@pytest.mark.parametrize("stop", range(2, 10))
@pytest.mark.parametrize(
    "saving", [{"every": 2}, {"every": 1, "keep": 1}, {"every": None, "each_epoch": True}], ids=str
)
def test_a_run_that_went_on_tells_what_the_uninterrupted_one_tells(
    stop: int, saving: dict[str, Any], tmp_path: Path
) -> None:
    """Wherever it was interrupted, in the middle of an epoch or between two."""
    with pytest.raises(Stop):
        run(tmp_path, stop=stop, saving=saving)
    assert numbers(run(tmp_path, saving=saving, resume=latest(tmp_path))) == numbers(run())


def test_what_was_made_void_is_not_told(tmp_path: Path) -> None:
    """From an older checkpoint, twice; what came after it the first time is gone."""
    run(tmp_path)
    older = tmp_path / "step00000001-batch00000001-epoch0000"
    for _ in range(2):
        assert numbers(run(tmp_path, resume=older, epochs=2)) == numbers(run(epochs=2))
    assert numbers(run(tmp_path, resume=latest(tmp_path))) == numbers(run())


def test_a_run_may_go_on_in_another_folder(tmp_path: Path) -> None:
    """Which then holds the whole history."""
    run(tmp_path / "a", epochs=1)
    run(tmp_path / "b", epochs=2, resume=latest(tmp_path / "a"))
    assert numbers(run(resume=latest(tmp_path / "b"))) == numbers(run())


def test_a_new_run_in_an_old_folder_begins_anew(tmp_path: Path) -> None:
    """The lines of the old one are void."""
    run(tmp_path, epochs=2)
    run(tmp_path, epochs=1)
    assert numbers(run(resume=latest(tmp_path), epochs=1)) == numbers(run(epochs=1))


def test_scores_of_an_old_run_are_void_too(tmp_path: Path) -> None:
    """A new run in its folder that validates nothing has none."""
    run(tmp_path, epochs=2)
    run(tmp_path, epochs=2, validate=None)
    assert run(resume=latest(tmp_path), epochs=2, validate=None).validations == []


def test_the_best_checkpoint_has_a_history_too(tmp_path: Path) -> None:
    """It lies one folder deeper."""
    run(tmp_path, saving={"every": None, "best": "w", "largest": True}, epochs=2)
    (best,) = (tmp_path / "best").iterdir()
    history = run(resume=best, epochs=2)
    assert [each["batch"] for each in history.records] == [1, 2, 3, 4, 5, 6]


def test_without_a_log_a_history_begins_at_the_checkpoint(tmp_path: Path) -> None:
    """As it is with a checkpoint that somebody else has saved."""
    run(tmp_path, epochs=1)
    (tmp_path / NAME).unlink()
    assert [each["batch"] for each in run(resume=latest(tmp_path), epochs=2).records] == [4, 5, 6]


ODD_LINES = [
    b'{"record": {"batch": 9, "skipped_by": 5}}',
    b'{"record": {"batch": 9, "skipped_by": [null, ["a"]]}}',
    b'{"record": {"batch": true, "skipped_by": []}}',
    b'{"record": {"batch": 0, "skipped_by": [], "epoch": [1]}}',
    b'{"record": {"batch": 0, "skipped_by": [], "step": "x"}}',
    b'{"validation": {"epoch": 0}}',
    b'{"validation": {"epoch": 0, "step": null}}',
]
DAMAGE = {
    "cut off": lambda text: text[:-20],
    "bytes": lambda text: text + b"\xff\xfe\x00\n",
    "another kind": lambda text: text + b'[1]\n7\n{"record": 3}\n{"record": {"batch": "x"}}\n{"validation": {}}\n{}\n',
    "odd counts": lambda text: text + b"".join(b"%b\n" % line for line in ODD_LINES),
    "deep": lambda text: text + b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_lines_that_are_damaged_are_left_out(kind: str, tmp_path: Path) -> None:
    """A run goes on without them, and what is added begins on a line of its own."""
    run(tmp_path, epochs=2)
    log = tmp_path / NAME
    log.write_bytes(DAMAGE[kind](log.read_bytes()))
    history = run(tmp_path, resume=latest(tmp_path))
    assert [each["batch"] for each in history.records][-4:] == [6, 7, 8, 9]
    again = run(resume=latest(tmp_path), epochs=3)
    assert [each["batch"] for each in again.records] == [*range(1, 10)]
    again.to_csv(tmp_path / "run.csv")
    again.plot()


def test_what_a_validation_gave_may_be_anything(tmp_path: Path) -> None:
    """What is no number is kept as nothing, also if asking for one fails in its own way."""

    class Odd:
        def __float__(self) -> float:
            raise RuntimeError

    log = HistoryLog(tmp_path)
    log.history.validations.append({"epoch": 0, "step": 1, "odd": Odd(), "set": {1}})
    log.save()
    assert json.loads((tmp_path / NAME).read_text()) == {
        "validation": {"epoch": 0, "step": 1, "odd": None, "set": None}
    }


def test_only_what_is_new_is_added(tmp_path: Path) -> None:
    """A line for each micro-batch and each validation, whatever the rhythm of saving."""
    run(tmp_path, epochs=2)
    kinds = [next(iter(json.loads(line))) for line in (tmp_path / NAME).read_text().splitlines()]
    assert (kinds.count("record"), kinds.count("validation")) == (6, 2)


def test_nothing_to_add_makes_no_file(tmp_path: Path) -> None:
    """And neither does a run that is not saved."""
    HistoryLog(tmp_path / "new").save()
    HistoryLog(None).save()
    assert list(tmp_path.iterdir()) == []


def test_exact_numbers_and_odd_names_come_back(tmp_path: Path) -> None:
    """As they were; words in any script, line breaks, infinities and counts beyond a double."""
    log = HistoryLog(tmp_path)
    odd = {"a\u2028\n\x85é": 0.1, "large": 2**60 + 1, "none": None, "inf": -math.inf, "batch": 1}
    log.history.raw.append({**odd, "loss": torch.tensor(0.1), "skipped_by": ("a@DO_BACKWARD",)})
    log.save()
    clock = sgd_shell(Weight(), []).state.clock.replace(batch=1)
    back = HistoryLog(None)
    back.resume(tmp_path / "step", clock)
    assert back.history.raw == log.history.raw
