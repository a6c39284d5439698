from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from functrain.show import Grid
from tests.pictures import pictures, svg

ASSETS = Path(__file__).parents[1] / ".assets"


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """Return the pictures as the command draws them now."""
    return pictures()


def test_the_pictures_are_what_the_command_draws(drawn: dict[str, str]) -> None:
    """The README shows what the library does now; if not, ``python -m tests.pictures .assets`` draws them again."""
    assert {path.name for path in ASSETS.glob("*.svg")} == set(drawn)
    assert {name: (ASSETS / name).read_text(encoding="utf-8") for name in drawn} == drawn


def test_a_picture_holds_every_cell() -> None:
    """A picture is well-formed and holds each text; a cell lies on its colour, and a heading on none."""
    grid = Grid(("<batch>", "v"), (("clip", "v"),), colours={"v": "#d9822b"})
    found = list(ET.fromstring(svg(grid)))  # noqa: S314 - made here
    assert [each.text for each in found if each.tag.endswith("text")] == ["<batch>", "v", "clip", "v"]
    assert [each.get("fill") for each in found if each.tag.endswith("rect")] == ["#d9822b"]
