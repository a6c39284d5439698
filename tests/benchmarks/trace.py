"""What tracing costs: the same update bare, traced, and with snapshots, in turns.

Run it as ``python -m tests.benchmarks.trace``; ``--rounds`` and ``--threads`` narrow it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from functrain import EMA, Accumulate, ClipNorm, Shell, SkipNonFinite, SkipSpikes, fold, pure, show
from tests.benchmarks.measuring import Column, Repeated, Row, interleaved
from tests.benchmarks.measuring import show as print_table
from tests.benchmarks.networks import batch_of, perceptron

EVERY = 2
HOOKS = (Accumulate(every=EVERY), ClipNorm(max_norm=1.0), SkipNonFinite(), SkipSpikes(), EMA(decay=0.999))
KEPT = 4
"""So many snapshots the budget holds, about."""

BARE, TRACED, KEEPING = "bare", "traced", "traced, with snapshots"
WIDTH, DEPTH, BATCH = 576, 4, (128, 64)
"""A perceptron of a million parameters."""

Builder = Callable[[Any], Callable[[], None]]


def forms(size: int) -> dict[str, Any]:
    """Return the hooks traced, and traced with a budget of some snapshots of a size in bytes."""
    return {TRACED: show.trace([*HOOKS]), KEEPING: show.trace([*HOOKS], budget=KEPT * size)}


def as_pipeline(hooks: Any) -> Any:
    """Return what a shell and a pure step take."""
    return fold(*hooks) if type(hooks) is tuple else hooks


def in_a_shell(hooks: Any) -> Callable[[], None]:
    """Return the update of a micro-batch in a shell."""
    model, batch = perceptron(WIDTH, DEPTH), batch_of(*BATCH)
    shell = Shell(model, torch.optim.AdamW(model.parameters(), lr=1e-3), as_pipeline(hooks))

    def update() -> None:
        with shell.batch(batch):
            shell.update(nn.functional.cross_entropy(model(batch[0]), batch[1]))

    return update


def as_one_function(hooks: Any) -> Callable[[], None]:
    """Return the update of a micro-batch as a pure step, not compiled: of a compiled one nothing is recorded."""
    model, batch = perceptron(WIDTH, DEPTH), batch_of(*BATCH)
    loss_fn = pure.functional(model, nn.CrossEntropyLoss())
    init, step, _ = pure.train_step(loss_fn, pure.adamw(1e-3), as_pipeline(hooks))
    state = init(pure.parameters(model))

    def update() -> None:
        nonlocal state
        state = step(state, batch)

    return update


def measured(build: Builder, rounds: int, size: int, what: str) -> list[Row]:
    """Return a row for each form but the bare one, each in turns with a bare one of its own."""
    return [_beside_bare(build, name, hooks, rounds, what) for name, hooks in forms(size).items()]


def _beside_bare(build: Builder, form: str, hooks: Any, rounds: int, what: str) -> Row:
    """Return the median of a form, and of its ratios to the bare window next to it."""
    contenders = {BARE: Repeated(a_window(build(HOOKS))), form: Repeated(a_window(build(hooks)))}
    times = interleaved(contenders, rounds, 1, 1, f"{what}, {form}")
    bare, mine = times[BARE], times[form]
    ratio = statistics.median(one / other for one, other in zip(mine, bare, strict=True))
    return {"form": form, "bare": statistics.median(bare), "ms": statistics.median(mine), "of_bare": ratio}


def a_window(update: Callable[[], None]) -> Callable[[], None]:
    """Return the update of a whole window."""

    def window() -> None:
        for _ in range(EVERY):
            update()

    return window


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count = sum(each.numel() for each in perceptron(WIDTH, DEPTH).parameters())
    size = 6 * 4 * count  # weights, gradients, two moments, a shadow, and room for the rest
    columns = (
        Column("", "form", ""),
        Column("bare, ms a window", "bare"),
        Column("ms a window", "ms"),
        Column("of bare", "of_bare"),
    )
    parts = {"in a shell": in_a_shell, "as one function": as_one_function}
    rows = {name: measured(build, options.rounds, size, name) for name, build in parts.items()}
    print_table(f"{count:,} parameters, medians of {options.rounds} rounds", columns, rows)


if __name__ == "__main__":
    main()
