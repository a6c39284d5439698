"""The whole update as one compiled function beside loops that do the same, interleaved in one run.

    python -m tests.benchmarks.pure_step [--json FILE] [--lanes 32]

Three-layer MLP of width 64, batch 128: forward, backward, norm clip, finite and spike veto, AdamW, EMA. Medians per
model; a
ratio below 1 means faster than the eager hand-written loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from functrain import EMA, ClipNorm, MovingMean, SkipNonFinite, SkipSpikes, _tree, pure

DECAY, MAX_NORM, RATIO = 0.999, 1.0, 3.0
HOOKS = (
    ClipNorm(max_norm=MAX_NORM),
    SkipNonFinite(drop=False),
    SkipSpikes(by=MovingMean(ratio=RATIO)),
    EMA(decay=DECAY),
)
Batch = tuple[Tensor, Tensor]


def mlp() -> nn.Module:
    """Return the model."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def data() -> Batch:
    """Return a batch."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(128, 64, generator=generator), torch.randint(0, 10, (128,), generator=generator)


def loop(batch: Batch, *, compiled: bool) -> Callable[[], None]:
    """Return one update as a loop would write it, eager, or with a compiled model and a compiled optimizer."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    parameters, mean = list(model.parameters()), torch.tensor(float("inf"))
    forward = torch.compile(model) if compiled else model
    step = torch.compile(optimizer.step) if compiled else optimizer.step

    def update() -> None:
        nonlocal mean
        optimizer.zero_grad()
        loss = functional.cross_entropy(forward(batch[0]), batch[1])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        if torch.isfinite(norm) and loss <= RATIO * mean:
            step()
            average.update_parameters(model)
            mean = torch.where(mean.isinf(), loss.detach(), 0.9 * mean + 0.1 * loss.detach())

    return update


def loss_fn(params: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch) -> Tensor:
    """Return the loss of the model as a function of its parameters."""
    return functional.cross_entropy(torch.func.functional_call(TEMPLATE, params, (batch[0],)), batch[1])


TEMPLATE = mlp()


def pure_step(batch: Batch) -> Callable[[], None]:
    """Return one compiled pure step."""
    init, step, _ = pure.train_step(loss_fn, pure.adamw(1e-3), HOOKS)
    state, compiled = init(dict(mlp().named_parameters())), torch.compile(step, fullgraph=True)

    def update() -> None:
        nonlocal state
        state = compiled(state, batch)

    return update


def lanes(batch: Batch, count: int) -> Callable[[], None]:
    """Return one compiled step of many models at once."""
    init, step, _ = pure.train_step(loss_fn, pure.adamw(1e-3), HOOKS)
    alone = [init(dict(mlp().named_parameters()), seed=seed) for seed in range(count)]
    states: Any = _tree.map_leaves(lambda *leaves: torch.stack(leaves), *alone)
    compiled = torch.compile(torch.func.vmap(step, in_dims=(0, None)), fullgraph=True)

    def update() -> None:
        nonlocal states
        states = compiled(states, batch)

    return update


def timed(update: Callable[[], None]) -> float:
    """Return the milliseconds of one call."""
    start = time.perf_counter()
    update()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    """Measure, print a table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    batch = data()
    works = {
        "loop, eager": (loop(batch, compiled=False), 1),
        "loop, compiled model and optimizer": (loop(batch, compiled=True), 1),
        "pure step, compiled": (pure_step(batch), 1),
        f"pure step, {arguments.lanes} lanes compiled": (lanes(batch, arguments.lanes), arguments.lanes),
    }
    first = {name: timed(update) / 1e3 for name, (update, _) in tqdm(works.items(), desc="compiling")}
    rows = measured(works, first, arguments.rounds)
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def measured(works: dict[str, Any], first: dict[str, float], rounds: int) -> list[dict[str, Any]]:
    """Return medians per model, warm and taken in turns, and ratios to the first row."""
    for update, _ in list(works.values()) * 5:
        update()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in tqdm(range(rounds), desc="measuring"):
        for name, (update, count) in works.items():
            times[name].append(timed(update) / count)
    medians = {name: statistics.median(found) for name, found in times.items()}
    base = next(iter(medians.values()))
    return [{"what": n, "ms": ms, "ratio": ms / base, "first_call_s": first[n]} for n, ms in medians.items()]


def show(rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table."""
    table = Table("update", "ms per model", "of the eager loop", "first call, s", title="MLP 3x64, batch 128, medians")
    for row in rows:
        table.add_row(row["what"], f"{row['ms']:.3f}", f"{row['ratio']:.3f}", f"{row['first_call_s']:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
