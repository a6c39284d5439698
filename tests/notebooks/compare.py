"""Compare notebooks as they are committed with the same after a run: ``python -m tests.notebooks.compare OLD NEW``.

The words of every text output have to agree, and the numbers nearly: processors add up in different orders.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")


def texts(path: Path) -> list[str]:
    """Return the text of each code cell's outputs, without what was said on stderr."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(map(text_of, cell["outputs"])) for cell in cells if cell["cell_type"] == "code"]


def text_of(output: dict[str, Any]) -> str:
    """Return the text of one output."""
    if output["output_type"] == "stream":
        return "".join(output["text"]) if output["name"] == "stdout" else ""
    return "".join(output.get("data", {}).get("text/plain", ""))


def differs(old: str, new: str) -> bool:
    """Tell whether words differ, or numbers by more than a tenth and five hundredths."""
    if [*NUMBER.sub("#", old).split()] != [*NUMBER.sub("#", new).split()]:
        return True
    pairs = zip(map(float, NUMBER.findall(old)), map(float, NUMBER.findall(new)), strict=True)
    return not all(math.isclose(one, other, rel_tol=0.1, abs_tol=0.05) for one, other in pairs)


def complaints(old: Path, new: Path) -> list[str]:
    """Return a line for each cell whose output differs."""
    found: list[str] = []
    for path in sorted(old.glob("*.ipynb")):
        pairs = zip(texts(path), texts(new / path.name), strict=True)
        found += [f"{path.name}, code cell {n}: {a!r} became {b!r}" for n, (a, b) in enumerate(pairs) if differs(a, b)]
    return found


if __name__ == "__main__":
    sys.exit("\n".join(complaints(Path(sys.argv[1]), Path(sys.argv[2]))) or None)
