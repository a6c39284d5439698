"""What the demo imports beyond the library itself."""

from __future__ import annotations

from importlib.util import find_spec

DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "rich": "rich",
    "matplotlib": "matplotlib",
    "safetensors": "safetensors",
    "numpy": "numpy",
}


def missing_extras() -> list[str]:
    """Return the distributions of the extra ``demo`` that are not installed; importing none of them.

    >>> missing_extras()
    []
    """
    return [distribution for module, distribution in DISTRIBUTIONS.items() if find_spec(module) is None]


def remedy(missing: list[str], command: str = "demo") -> str:
    """Return the sentence that says what to install.

    >>> print(remedy(["rich"]))
    functrain demo needs rich, which is not installed here: run  pip install "functrain[demo]"
    """
    verb = "is" if len(missing) == 1 else "are"
    needed = " and ".join(missing)
    return f'functrain {command} needs {needed}, which {verb} not installed here: run  pip install "functrain[demo]"'
