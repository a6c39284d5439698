"""Checkpoints that earlier versions have written load for ever, and go on as they would have then."""

from __future__ import annotations

import json

import pytest

import functrain
from functrain.disk.layout import VERSION
from functrain.testing.differences import unlike
from tests.disk.write_data import AFTER, BEFORE, DATA, hooks, pure_run, shell, stepped
from tests.scalars import run
from tests.shell.records import differences, record

VERSIONS = sorted(DATA.parent.iterdir())


def test_there_is_one_of_each_version() -> None:
    """The one of this version is among them."""
    assert [path.name for path in VERSIONS] == [f"version{number}" for number in range(1, VERSION + 1)]


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.name)
def test_a_shell_goes_on(path: object) -> None:
    """Weights, momentum, schedule, scale, window, averages: the same as without the years in between."""
    loaded, straight = shell(), shell()
    run(loaded, AFTER)
    loaded.load(f"{path}/shell")
    run(straight, BEFORE)
    run(loaded, AFTER)
    run(straight, AFTER)
    assert differences(record(straight), record(loaded)) == []
    assert functrain.load(f"{path}/shell").parts["data"] == {"place": 5}


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.name)
def test_a_pure_state_goes_on(path: object) -> None:
    """As it is, and in the structure of a new one."""
    functions, first = pure_run()
    straight = stepped(functions, first, BEFORE + AFTER)
    stored = functrain.load(f"{path}/pure")
    for state in (stored.state, stored.into(first, hooks(scaled=False))):
        assert list(unlike(straight, stepped(functions, state, AFTER), "state")) == []


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.name)
def test_the_manifest_is_as_described(path: object) -> None:
    """Format, digest and content under the names that the layout gives them."""
    with open(f"{path}/shell/manifest.json", encoding="utf-8") as file:  # noqa: PTH123 - a text is a path, too
        whole = json.load(file)
    assert sorted(whole) == ["content", "format", "sha256"]
    assert {"kind", "serial", "clock", "written_by", "tensors", "parts"} <= set(whole["content"])
    assert whole["content"]["written_by"].keys() == {"functrain", "torch", "python"}
