"""What one rank does in the cases: each function takes its rank first and returns plain data."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from functrain import EMA, Accumulate, ClipNorm, Shell, SkipLimitError, SkipNonFinite, SkipSpikes, Stage, fit, hook
from functrain.hooks.spike_statistics import FixedLimit
from tests.benchmarks import ddp
from tests.distributed.runs import PLANS, ROWS, exchanges, loss_of, micro_batch, network, outcome, shell_of, wrapped


class Number(nn.Module):
    """One number, whose output is it times what comes in: the gradient of the output is what came in."""

    def __init__(self) -> None:
        """Begin at zero."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, gradient: float) -> Tensor:
        """Return the number times a gradient."""
        return (self.weight * gradient).sum()


def number_shell(*hooks: Any) -> tuple[nn.Module, Shell]:
    """Return a replicated number and its shell, with steps of the size of the gradient."""
    model = DistributedDataParallel(Number())
    return model, Shell(model, torch.optim.SGD(model.parameters(), lr=1.0), list(hooks))


def present(model: nn.Module, shell: Shell, gradient: float, loss: float = 0.0, weight: float | None = None) -> None:
    """Run a micro-batch of a gradient, and of a loss if that matters."""
    with shell.batch():
        shell.update(model(gradient) + loss, weight)


def applied(shell: Shell) -> float:
    """Return the sum of the gradients that have been applied."""
    return -float(shell.state.params["main"]["weight"])


def weighted(rank: int) -> float:
    """Present mean gradients 3 and 1/3 with counts 2 and 6."""
    model, shell = number_shell(Accumulate(every=1))
    present(model, shell, (3.0, 1 / 3)[rank], weight=(2.0, 6.0)[rank])
    return applied(shell)


def deferred(rank: int) -> tuple[list[int], float]:
    """Count the reductions after each micro-batch of a window of two."""
    model, shell = number_shell(Accumulate(every=2))
    gradients = (1.0, 3.0)[rank], 5.0
    counts = [exchanges(lambda each=each: present(model, shell, each))["c10d::allreduce_"] for each in gradients]
    return counts, applied(shell)


def spiking(rank: int) -> tuple[float, int, bool]:
    """Present losses 1000 and 1 to a limit of 10."""
    model, shell = number_shell(SkipSpikes(by=FixedLimit(limit=10.0)))
    present(model, shell, 1.0, loss=(1000.0, 1.0)[rank])
    return applied(shell), shell.state.clock.skipped, bool(shell.state.vetoes[Stage.DO_OPTIMIZER_STEP]["spikes"])


def dropping(rank: int) -> float:
    """Present NaN and 3 on one rank, 1 and 5 on the other, in a window of two."""
    model, shell = number_shell(Accumulate(every=2), SkipNonFinite())
    for gradient in ((float("nan"), 3.0), (1.0, 5.0))[rank]:
        present(model, shell, gradient)
    return applied(shell)


def failing(rank: int, kind: str, fails_at: int) -> float:
    """Present 1, 10, 4 in windows of two, of which one raises once after its backward and is presented again."""
    model: nn.Module = DistributedDataParallel(Number()) if kind == "ddp" else sharded(Number())
    calls: list[int] = []

    @hook(stages=Stage.AFTER_BACKWARD)
    def fail(state: Any, stage: Any, will_skip: Any) -> Any:
        calls.append(1)
        if len(calls) == fails_at:
            raise RuntimeError("on purpose")
        return state, True, state.loss

    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=1.0), [Accumulate(every=2), fail])
    for gradient in (1.0, 10.0, 10.0, 4.0)[2 - fails_at :]:
        with suppress(RuntimeError):
            present(model, shell, gradient)
    weight: Any = shell.state.params["main"]["weight"]
    return -float(full(weight))


def sharded(model: nn.Module) -> nn.Module:
    """Return a module whose parameters are sharded."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def leaving(rank: int) -> float:
    """Leave the first micro-batch without an update on one rank."""
    model, shell = number_shell(Accumulate(every=2), SkipNonFinite())
    with shell.batch():
        if rank:
            shell.update(model(7.0))
    present(model, shell, (3.0, 5.0)[rank])
    return applied(shell)


def sharded_norm(rank: int) -> tuple[float, list[float]]:
    """Measure and clip a gradient whose shards have norms 3 and 4."""
    from torch.distributed.fsdp import fully_shard

    model = Pair()
    fully_shard(model)
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=1.0), ClipNorm(max_norm=1.0))
    with shell.batch():
        shell.update(model(torch.tensor([3.0, 4.0], dtype=torch.float64)))
    weight: Any = shell.state.params["main"]["weight"]
    return float(shell.state.metrics["grad_norm"]), (-weight.full_tensor()).tolist()


class Pair(nn.Module):
    """Two numbers, one for each of two ranks."""

    def __init__(self) -> None:
        """Begin at zero."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, gradient: Tensor) -> Tensor:
        """Return the sum of the numbers times a gradient."""
        return (self.weight * gradient).sum()


def averaging(rank: int, kind: str) -> tuple[list[str], bool, bool]:
    """Return the names of a shadow, whether it is sharded, and whether it is the average of the whole weights."""
    shell = shell_of(model := wrapped(kind), EMA(decay=0.5))
    seen: list[dict[str, Tensor]] = []
    for place in range(3):
        rows, _ = micro_batch(PLANS["plain"], place)
        with shell.batch():
            shell.update(loss_of(model, rows[rank::2], None))
        seen.append({name: full(leaf) for name, leaf in shell.state.params["main"].items()})
    shadow = shell.state.hooks["ema"]["shadow"]
    right = all(
        torch.allclose(full(leaf), 0.5 * (0.5 * (seen[0][name] + seen[1][name])) + 0.5 * seen[2][name], rtol=1e-14)
        for name, leaf in shadow.items()
    )
    return list(shadow), all(hasattr(leaf, "device_mesh") for leaf in shadow.values()), right


def swapping(rank: int, kind: str) -> dict[str, bool]:
    """Tell which outputs are right: raw, averaged in place and as a module, raw again, trained on, and restored."""
    shell = shell_of(model := wrapped(kind), EMA(decay=0.5))
    train_on(shell, model, rank, range(2))
    state, taken = shell.state, shell.snapshot()
    raw = plainly({name: full(leaf) for name, leaf in state.params["main"].items()})
    averaged = plainly({name: full(leaf) for name, leaf in state.hooks["ema"]["shadow"].items()})
    found = {"raw": same(model, raw)}
    with shell.averaged("ema"):
        found["averaged"] = same(model, averaged)
    found["module"] = same(shell.averaged_module("ema", network), averaged)
    found["raw again"] = same(model, raw)
    train_on(shell, model, rank, range(2, 4))
    found["trained on"] = not same(model, raw)
    shell.restore(taken)
    found["restored"] = same(model, raw)
    return found | {"different": not torch.equal(raw, averaged)}


def train_on(shell: Shell, model: nn.Module, rank: int, places: range) -> None:
    """Train on this rank's rows of some micro-batches."""
    for place in places:
        rows, _ = micro_batch(PLANS["plain"], place)
        with shell.batch():
            shell.update(loss_of(model, rows[rank::2], None))


def plainly(weights: dict[str, Tensor]) -> Tensor:
    """Return what the network makes of some rows with other weights."""
    return torch.func.functional_call(network(), weights, micro_batch(PLANS["plain"], 9)[0])


def same(model: nn.Module, expected: Tensor) -> bool:
    """Tell whether a model makes the same of those rows."""
    with torch.no_grad():
        return bool(torch.allclose(model(micro_batch(PLANS["plain"], 9)[0]), expected, rtol=1e-12))


def full(leaf: Any) -> Tensor:
    """Return a copy of a whole tensor."""
    return (leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf).detach().clone()


def warming_up(rank: int) -> float:
    """Return the factor of the learning rate after two of ten steps of warm-up."""
    model = DistributedDataParallel(Number())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    shell = Shell(model, optimizer, Accumulate(every=2), schedule)
    for _ in range(4):
        present(model, shell, 1.0)
    return optimizer.param_groups[0]["lr"]


def counted(rank: int, name: str, kind: str) -> Counter[str]:
    """Count what is exchanged in one window of three micro-batches, after two others."""
    plan = PLANS[name]
    shell = shell_of(model := wrapped(kind), plan.hooks())

    def window() -> None:
        for place in range(3):
            rows, weights = micro_batch(plan, place)
            with shell.batch():
                shell.update(loss_of(model, rows[rank::2], None), float(weights[0]) if plan.weighted else None)

    window()  # torch rebuilds its buckets in the second
    window()
    return exchanges(window)


def by_hand(rank: int) -> Counter[str]:
    """Count what the recipe of torch exchanges in such a window."""
    model: Any = wrapped("ddp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def window() -> None:
        optimizer.zero_grad()
        for place in range(3):
            rows, _ = micro_batch(PLANS["plain"], place)
            if place < 2:
                with model.no_sync():
                    loss_of(model, rows[rank::2], None).backward()
            else:
                loss_of(model, rows[rank::2], None).backward()
        optimizer.step()

    window()  # torch rebuilds its buckets in the second
    window()
    return exchanges(window)


class Branches(nn.Module):
    """Two numbers, of which a forward uses one or both."""

    def __init__(self) -> None:
        """Begin at zero."""
        super().__init__()
        self.one, self.other = Number(), Number()

    def forward(self, gradient: float, both: bool) -> Tensor:
        """Return what one branch makes of a gradient, or both."""
        return self.one(gradient) + self.other(gradient) if both else self.one(gradient)


def branching(rank: int) -> list[float]:
    """Drop a whole window that used one branch, then train on both."""
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=1.0), Accumulate(every=2) + SkipNonFinite())
    for gradient, both in ((float("nan"), False), (float("nan"), False), (1.0 + rank, True), (2.0, False)):
        with shell.batch():
            shell.update(model(gradient, both))
    return [-float(leaf) for leaf in shell.state.params["main"].values()]


def built_differently(rank: int, what: str) -> str:
    """Return what a shell says that is built differently on rank 1."""
    hooks: Any = ClipNorm(max_norm=1.0 + rank) if what == "setting" else [ClipNorm(max_norm=1.0), EMA()][: 2 - rank]
    try:
        number_shell(*(hooks if isinstance(hooks, list) else [hooks]))
    except ValueError as error:
        return str(error)
    return ""


def losing(rank: int, how: str) -> None:
    """Lose rank 1 in the second micro-batch."""
    hooks = [SkipNonFinite()] if how == "dies between verdicts" else []
    model, shell = number_shell(*hooks)
    present(model, shell, 1.0)
    if rank and how == "hangs":
        time.sleep(3)
    elif rank:
        os._exit(1)
    present(model, shell, 1.0)


def fitting(rank: int) -> tuple[list[list[int]], str]:
    """Train for two epochs with a sampler per rank; return which examples came, and what was shown."""
    examples = [torch.tensor(float(place), dtype=torch.float64) for place in range(8)]
    loader: Any = DataLoader(examples, sampler=DistributedSampler(examples, seed=1))
    _, shell = number_shell()
    seen: list[int] = []

    def loss_of_number(model: nn.Module, batch: Tensor) -> Tensor:
        seen.append(int(batch))
        return model(0.0)

    with redirect_stderr(StringIO()) as shown:
        fit(shell, loader, loss_of_number, 2)
    return [seen[:4], seen[4:]], shown.getvalue()


def reading(rank: int) -> tuple[dict[str, float], int]:
    """Return the metrics of a batch whose losses are 1 and 3, and how often ranks exchanged something for them."""
    model, shell = number_shell(ClipNorm(max_norm=1.0))
    present(model, shell, 5.0, loss=1.0 + 2.0 * rank)
    found: list[dict[str, float]] = []
    count = exchanges(lambda: found.append(shell.metrics())).total()
    return found[0], count


HOOKS = [Accumulate(every=2), ClipNorm(max_norm=0.1), EMA(decay=0.5)]


def saving(rank: int, kind: str, path: str) -> Any:
    """Train, save, train on; return what came of it."""
    shell = adam_shell(model := wrapped(kind))
    go_on(shell, model, range(4), rank, 2)
    shell.save_sharded(path)
    go_on(shell, model, range(4, 8), rank, 2)
    return outcome(shell)


def resuming(rank: int, kind: str, path: str, world: int) -> Any:
    """Load what two ranks have saved, and train on."""
    shell = adam_shell(model := wrapped(kind))
    shell.load_sharded(path)
    go_on(shell, model, range(4, 8), rank, world)
    return outcome(shell)


def adam_shell(model: nn.Module) -> Shell:
    """Return a shell whose optimizer has moments and counts."""
    return Shell(model, torch.optim.AdamW(model.parameters(), lr=0.1), HOOKS)


def go_on(shell: Shell, model: nn.Module, places: range, rank: int, world: int) -> None:
    """Train on the rows of one of several ranks."""
    size = ROWS // world
    for place in places:
        rows, _ = micro_batch(PLANS["plain"], place)
        with shell.batch():
            shell.update(loss_of(model, rows[rank * size : rank * size + size], None))


def saving_too_early(rank: int, path: str) -> str:
    """Return what saving in the middle of a window says."""
    shell = adam_shell(model := wrapped("fsdp"))
    go_on(shell, model, range(1), rank, 2)
    try:
        shell.save_sharded(path)
    except ValueError as error:
        return str(error)
    return ""


def skipping_too_often(rank: int) -> tuple[str, int]:
    """Return what a limit of one skip in a row says on each rank if one of them spoils all losses, and when."""
    model, shell = number_shell(SkipSpikes(by=FixedLimit(limit=10.0), max_consecutive=1))
    for _ in range(4):
        try:
            present(model, shell, 1.0, loss=(1000.0, 1.0)[rank])
        except SkipLimitError as error:
            return str(error), shell.state.clock.batch
    return "", 0


def benchmarking(rank: int) -> tuple[list[int], list[Tensor], list[Tensor]]:
    """Run both contenders of the benchmark; return the all-reduces of a window, and both weights."""
    rows = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(rank))
    contenders = [ddp.by_hand(8, rows), ddp.by_shell(8, rows)]
    for _ in range(2):
        for window, _ in contenders:
            window()
    counts = [exchanges(window)["c10d::allreduce_"] for window, _ in contenders]
    first, second = ([leaf.detach() for leaf in model.parameters()] for _, model in contenders)
    return counts, first, second
