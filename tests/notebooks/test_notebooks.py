"""The notebooks as they are committed; running them is up to the proof of a commit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.notebooks.compare import complaints, differs

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    """So that the tests below look at something."""
    assert [path.name for path in NOTEBOOKS][:2] == ["01_tour.ipynb", "02_hooks_are_functions.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_ran_and_says_something_of_no_machine(path: Path) -> None:
    """In order, without an error or a warning, with an output, which names no folder, no address and no time of day."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert not any("execution" in cell["metadata"] for cell in cells)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    told = json.dumps([{**output, "data": {**output.get("data", {}), "image/png": ""}} for output in outputs])
    assert not [word for word in (" at 0x", "site-packages", "/home/", "/tmp/") if word in told]  # noqa: S108


def test_a_notebook_agrees_with_itself() -> None:
    """The comparison finds nothing between a folder and itself."""
    assert complaints(FOLDER, FOLDER) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("0.96 with ema", "0.97  with ema", False),
        ("0.96 with ema", "0.96 with raw", True),
        ("0.96 with ema", "0.66 with ema", True),
        ("12 steps", "12 steps, 1 skipped", True),
    ],
)
def test_words_agree_and_numbers_nearly(old: str, new: str, expected: bool) -> None:
    """What another processor may change is forgiven, and nothing else."""
    assert differs(old, new) is expected
