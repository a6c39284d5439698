"""A process of its own that runs functions, kept from one example to the next; and one for a single call."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.testing.own_project import ROOT

SERVE = "from tests.disk.process import serve; serve()"


class Elsewhere:
    """Calls module-level functions in another process; arguments and results are pickled."""

    def __init__(self) -> None:
        """Start the process."""
        kept = {name: value for name, value in os.environ.items() if name != "CI"}
        environment = {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", SERVE]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT, text=True
        )

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns there, or raise what it raises."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(packed((function, arguments)), file=self.process.stdin, flush=True)
        raised, result = unpacked(self.process.stdout.readline())
        if raised is not None:
            raise raised
        return result

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def packed(value: Any) -> str:
    """Return a value as one line."""
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(line: str) -> Any:
    """Return the value of a line."""
    return pickle.loads(base64.b64decode(line))


def serve() -> None:
    """Call what is asked for, until nothing is."""
    import torch

    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        function, arguments = unpacked(line)
        try:
            answer = packed((None, function(*arguments)))
        except Exception as error:  # noqa: BLE001 - raised again by who asked
            answer = packed((error, None))
        print(answer, file=answers, flush=True)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    """Give a process that lives as long as the tests of a module."""
    process = Elsewhere()
    yield process
    process.close()
