"""Names of parametrized cases that stay the same when a process collects them again."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> str:
    """Return a value as text without backslashes.

    Collecting a second time in one process, pytest escapes the names that it has escaped before, and mutation testing,
    which does so for each mutant, would not find them.
    """
    return str(value).replace("\\", "")
