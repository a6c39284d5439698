"""A test file that ``functrain laws --write`` writes once, and that belongs to the user from then on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from functrain.testing.target import TargetError, subject_at

FILE = '''"""The laws of functrain on {target}: a test for each law; yours to change."""

import pytest

from {module} import {first}


@pytest.mark.laws(hook={name})
def test_{test}() -> None:
    """What has to hold besides the laws may be checked here."""
'''

BEGINNING = '''"""A hook to begin with, and the laws of functrain on it: a test for each law; yours to change."""

from typing import Any

import pytest

from functrain import Hook, Outcome, Stage, TrainState


class ScaleLoss(Hook):
    """Multiplies the loss by a factor."""

    factor: float = 0.5
    stages: Any = frozenset({Stage.DO_BACKWARD})

    def update(self, state: TrainState, stage: Stage, will_skip: Any) -> Outcome:
        return Outcome(state, True, state.loss * self.factor)


@pytest.mark.laws(hook=ScaleLoss)
def test_scale_loss() -> None:
    """What has to hold besides the laws may be checked here."""
'''


def is_target(text: str) -> bool:
    """Tell an import path from the path of a file.

    >>> is_target("package.module:hook"), is_target("tests/test_laws.py")
    (True, False)
    """
    return re.fullmatch(r"[\w.]+:[\w.]+", text) is not None


def write_test_file(target: str | None, path: Path, mode: Literal["w", "x"]) -> Path:
    """Write a test file, with ``"x"`` only where there is none.

    Raises:
        TargetError: the target cannot be checked, there is a file, or it cannot be written.
    """
    content = BEGINNING if target is None else content_for(target)
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(content)
    except FileExistsError as error:
        raise TargetError(f"{path} is there already; give another path, or --overwrite to lose it") from error
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror}") from error
    return path


def content_for(target: str) -> str:
    """Return the text of a test file.

    Raises:
        TargetError: the target cannot be checked.

    >>> print(content_for("functrain:EMA").splitlines()[-3])
    @pytest.mark.laws(hook=EMA)
    """
    subject_at(target)
    module, _, name = target.partition(":")
    test = re.sub(r"\W+|(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return FILE.format(target=target, module=module, first=name.partition(".")[0], name=name, test=test)
