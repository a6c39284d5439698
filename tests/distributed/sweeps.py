"""Sweeps on one rank of several, and alone: each job takes its rank first and returns plain data."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from functrain import EMA, Accumulate, ClipNorm, FixedLimit, SkipNonFinite, SkipSpikes, TrainState, pure
from functrain.pure import SweepTable
from functrain.pure.team import mark
from functrain.shell.collectives import Ranks

OVER = {"lr": [0.1, 0.2, 1e20], "hooks.clip.max_norm": [0.1, 1e30]}


def weights() -> dict[str, Tensor]:
    """Return the weights of a small regression."""
    return {"w": torch.linspace(-1, 1, 15).reshape(5, 3), "b": torch.zeros(3)}


def loss_fn(params: dict[str, Tensor], _buffers: Any, batch: Tensor) -> Tensor:
    """Return a loss with a bend in it."""
    return (torch.tanh(batch @ params["w"] + params["b"]) - batch[:, :3]).square().mean()


def batches(count: int = 5) -> list[Tensor]:
    """Return batches, of which one is spoiled."""
    noise = torch.Generator().manual_seed(0)
    found = [torch.randn(4, 5, generator=noise) for _ in range(count)]
    found[2][0] = float("nan")
    return found


def hooks(decay: float = 0.5) -> list[Any]:
    """Return hooks that wait, clip, drop, veto and average."""
    spikes = SkipSpikes(by=FixedLimit(limit=1e3))
    return [Accumulate(every=2), ClipNorm(max_norm=1.0), SkipNonFinite(), spikes, EMA(decay=decay)]


def sweep(over: Any = OVER, *, fed: Any = None, decay: float = 0.5, **options: Any) -> SweepTable:
    """Sweep over rates, limits and seeds; some lanes die."""
    run = pure.train_step(loss_fn, pure.adamw(0.1), hooks(decay))
    given = {"flush": run.flush, "params": weights(), "progress": False}
    return pure.sweep(run.init, run.step, over=over, compile=False, **given | {"batches": fed or batches()} | options)


def found_in(table: SweepTable) -> tuple[Any, Any, Tensor]:
    """Return rows, states and losses as plain data that compares bitwise, NaN equal to NaN."""
    from functrain import _tree

    states: TrainState = table.states
    marks = {path: (tuple(leaf.shape), int(mark(leaf))) for path, leaf in _tree.paths(states).items()}
    return repr(table.rows), marks, table.losses.view(torch.long)


def sweeping(rank: int, max_lanes: int | None) -> tuple[Any, Any, Tensor]:
    """Sweep together with other ranks."""
    return found_in(sweep(max_lanes=max_lanes))


def costing(rank: int) -> list[int]:
    """Count what is exchanged before the first batch of a sweep, and before the end of the last one."""
    calls, counts = [], []

    def counting(exchange: Any) -> Any:
        return lambda self, values: calls.append(1) or exchange(self, values)

    def told() -> Any:
        for batch in batches():
            counts.append(len(calls))
            yield batch
        counts.append(len(calls))

    with patch.multiple(Ranks, objects=counting(Ranks.objects), gathered=counting(Ranks.gathered)):
        sweep({"lr": [0.1, 0.2]}, fed=told())
    return counts


def differing(rank: int, what: str) -> str:
    """Return what a sweep says that is another one on rank 1."""
    odd = bool(rank)
    cases: dict[str, dict[str, Any]] = {
        "over": {"over": {"lr": [0.1, 0.2 + rank]}},
        "lanes": {"over": {"lr": [0.1, 0.2, 0.3][: 3 - rank]}},
        "epochs": {"epochs": 1 + rank},
        "setting": {"decay": 0.5 + rank / 4},
        "weights": {"params": {name: leaf + rank for name, leaf in weights().items()}},
        "batches": {"fed": batches()[:: 1 - 2 * rank]},
        "count": {"fed": batches(5 + rank)},
        "no lanes": {"over": [] if odd else [{"lr": 0.1}]},
        "part": {"max_lanes": 1 - rank},
        "value": {"over": {"hooks.clip.max_norm": [1.0, -1.0]}},
        "loader": {"fed": failing() if odd else batches()},
    }
    try:
        sweep(**{"over": {"lr": [0.1, 0.2]}, **cases[what]})
    except (ValueError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Failing:
    """A loader that breaks."""

    def __iter__(self) -> Any:
        """Yield one batch, then raise."""
        yield batches()[0]
        raise OSError("the disk is gone")


def failing() -> Any:
    """Return a loader that breaks."""
    return Failing()


def commanding(rank: int, world: int, out: str) -> str:
    """Run the command with two lanes; return what it prints."""
    from rich.console import Console

    from functrain.demo import sweeping as demo
    from functrain.demo.options import SweepOptions
    from functrain.demo.ranks import Place
    from functrain.demo.sweep_command import show

    demo.RATES, demo.DECAYS = (0.1, 0.3), (0.9,)  # type: ignore[assignment]
    console = Console(file=StringIO(), quiet=rank > 0, width=200)
    with redirect_stderr(StringIO()) as shown:
        show(SweepOptions(epochs=1, out=Path(out)), console, Place(rank, world))
    return console.file.getvalue() + shown.getvalue()  # type: ignore[attr-defined]
