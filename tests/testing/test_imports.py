"""What imports what: functrain needs neither Hypothesis nor pytest."""

from __future__ import annotations

import subprocess
import sys

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"hypothesis", "pytest", "_pytest"}:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> str:
    """Run code in a fresh interpreter, and return what it prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_functrain_works_without_hypothesis_and_pytest() -> None:
    """All of it but functrain.testing."""
    code = BLOCKER + "import functrain, functrain.pure, functrain.shell\nprint(len(functrain.fold(functrain.EMA())))"
    assert run(code) == "1"


def test_the_laws_say_what_they_need() -> None:
    """functrain.testing names Hypothesis, and how to get it."""
    code = BLOCKER + "try:\n    import functrain.testing\nexcept ImportError as error:\n    print(error)"
    assert "functrain[testing]" in run(code)


def test_functrain_does_not_import_the_laws() -> None:
    """They are imported by who asks for them."""
    names = run("import sys, functrain; print(*sys.modules)").split()
    assert "functrain" in names
    assert not [name for name in names if name.startswith(("functrain.testing", "hypothesis"))]
