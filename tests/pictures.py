"""The pictures of grids in the README, drawn from the descriptions that text and HTML are made of.

``python -m tests.pictures .assets`` writes them into a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from functrain import EMA, Accumulate, ClipNorm, FixedLimit, Shell, SkipNonFinite, SkipSpikes, Stage, fold, hook, show
from functrain.demo.digits import Batch, load_digits
from functrain.demo.poison import broken_pixel
from functrain.show import Grid, Trace

LETTER, LINE, PAD = 8.5, 24, 8
"""Width of a letter and height of a line, in the font that is chosen below, and what is left free in a cell."""

STYLE = (
    "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}.on{fill:#fff}line{stroke:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)


@hook(stages=Stage.DO_BACKWARD)
def decay(state, stage, will_skip):  # noqa: ANN001, ANN201, D103 - as a user writes it
    weights = state.params["main"].values()
    return state, True, state.loss + 1e-3 * sum(weight.square().sum() for weight in weights)


PIPELINE = fold(
    Accumulate(every=2),
    ClipNorm(max_norm=1.0),
    SkipNonFinite(),
    SkipSpikes(by=FixedLimit(limit=10.0)),
    decay,
    EMA(decay=0.9),
)


def overexposed(batch: Batch) -> Batch:
    """Return images that are far too bright, so that the loss is finite and large."""
    images, labels = batch
    return images * 100, labels


POISON = {4: broken_pixel, 9: overexposed, 12: broken_pixel, 13: broken_pixel}


def poisoned() -> Iterator[Batch]:
    """Yield sixteen micro-batches of real digits, four of them spoiled."""
    images, labels = load_digits(seed=0).train
    for place in range(16):
        part = slice(32 * place, 32 * place + 32)
        batch = images[part], labels[part]
        yield POISON.get(place, lambda batch: batch)(batch)


def trace_of_digits() -> Trace:
    """Return what the hooks of the pipeline did over these batches."""
    torch.manual_seed(0)
    model, traced = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), show.trace(PIPELINE)
    shell = Shell(model, torch.optim.AdamW(model.parameters(), lr=0.02), traced)
    for images, labels in poisoned():
        with shell.batch():
            loss: Tensor = nn.functional.cross_entropy(model(images), labels)
            shell.update(loss)
    return traced.trace


def pictures() -> dict[str, str]:
    """Return each picture by the name of its file."""
    grids = {"pipeline.svg": show.pipeline(PIPELINE).shown, "trace.svg": trace_of_digits().view().shown}
    return {name: svg(grid) for name, grid in grids.items() if isinstance(grid, Grid)}


def svg(grid: Grid) -> str:
    """Return a grid as a picture that is legible on light and on dark."""
    table = [grid.heads, *grid.rows]
    letters = [max(2, *(len(row[column]) for row in table)) for column in range(len(grid.heads))]
    widths = [count * LETTER + 2 * PAD for count in letters]
    lefts = [0.0, *accumulate(widths)]
    cells = "".join(
        _cell(text, (lefts[column], LINE * place, widths[column]), grid.colours.get(text) if place and column else None)
        for place, row in enumerate(table)
        for column, text in enumerate(row)
    )
    line = f'<line x1="0" x2="{lefts[-1]:g}" y1="{LINE}" y2="{LINE}"/>'
    size = f'width="{lefts[-1]:g}" height="{LINE * len(table)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{line}{cells}</svg>\n'


def _cell(text: str, place: tuple[float, float, float], colour: str | None) -> str:
    """Return a text, white on a colour if it has one."""
    left, top, width = place
    at = f'x="{left + PAD:g}" y="{top + LINE - 7:g}"'
    if colour is None:
        return f"<text {at}>{escape(text)}</text>"
    box = f'x="{left + 1:g}" y="{top + 1:g}" width="{width - 2:g}" height="{LINE - 2}" rx="4"'
    return f'<rect {box} fill="{colour}"/><text class="on" {at}>{escape(text)}</text>'


def main() -> None:
    """Write the pictures into the folder that is named."""
    for name, drawn in pictures().items():
        (Path(sys.argv[1]) / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
