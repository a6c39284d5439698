"""The same training by one process and by several, each rank on its own part of every micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from functrain import (
    EMA,
    Accumulate,
    ClipAdaptive,
    ClipNorm,
    ClipPercentile,
    ClipValue,
    Lookahead,
    MixedPrecision,
    Shell,
    SkipNonFinite,
    SkipSpikes,
    SwitchEMA,
    every,
    named,
    on,
)
from functrain.hooks.spike_statistics import MovingMean

ROWS = 4
"""Rows of a micro-batch, of which each of two ranks takes two and each of four takes one."""


@dataclass(frozen=True)
class Plan:
    """One training.

    Attributes:
        hooks: makes the pipeline.
        batches: micro-batches of each of two epochs; what is left of a window at the end of one is flushed.
        poison: by micro-batch of a run, what its first row is multiplied by; the first row is rank 0's.
        weighted: give the rows that count as weights, which differ between ranks.
        strict: check every hook at every call.
    """

    hooks: Callable[[], list[Any]]
    batches: int = 7
    poison: dict[int, float] = field(default_factory=dict)
    weighted: bool = False
    strict: bool = False


NAN, INF = float("nan"), float("inf")
PLANS = {
    "plain": Plan(list),
    "accumulate": Plan(lambda: [Accumulate(every=3)]),
    "discard": Plan(lambda: [Accumulate(every=3, partial="drop"), EMA(decay=0.5)]),
    "flush after a drop": Plan(lambda: [Accumulate(every=3), SkipNonFinite()], 5, {4: NAN, 8: NAN}),
    "clip": Plan(lambda: [Accumulate(every=2), ClipNorm(max_norm=0.1)]),
    "weighted": Plan(lambda: [Accumulate(every=3), ClipNorm(max_norm=0.1)], weighted=True),
    "weighted fp16": Plan(lambda: [Accumulate(every=3), MixedPrecision(precision="fp16")], weighted=True),
    "ema": Plan(lambda: [Accumulate(every=2), EMA(decay=0.5)]),
    "fp16": Plan(lambda: [Accumulate(every=2), MixedPrecision(precision="fp16"), EMA(decay=0.5)], 8, {4: INF}),
    "drop first": Plan(lambda: [Accumulate(every=2), SkipNonFinite()], 6, {2: NAN}),
    "drop last": Plan(lambda: [Accumulate(every=3), SkipNonFinite(), EMA(decay=0.5)], 9, {5: NAN}),
    "drop all": Plan(lambda: [Accumulate(every=2), SkipNonFinite()], 8, {2: NAN, 3: NAN}),
    "drop alone": Plan(lambda: [SkipNonFinite()], 4, {1: NAN}),
    "veto": Plan(lambda: [Accumulate(every=2), SkipNonFinite(drop=False)], 8, {2: NAN}),
    "spikes": Plan(
        lambda: [Accumulate(every=2), ClipNorm(max_norm=0.1), SkipSpikes(by=MovingMean(ratio=30.0, warmup=1))],
        10,
        {4: 1e3},
    ),
    "norm spikes": Plan(
        lambda: [ClipNorm(max_norm=0.1), SkipSpikes(of="grad_norm", by=MovingMean(ratio=5.0, warmup=1))], 6, {4: 1e3}
    ),
    "dropped spikes": Plan(
        lambda: [Accumulate(every=2), SkipSpikes(drop=True, by=MovingMean(ratio=30.0, warmup=1))], 10, {4: 1e3, 7: 1e3}
    ),
    "clip value": Plan(lambda: [Accumulate(every=2), ClipValue(clip_value=0.01)]),
    "clip adaptive": Plan(lambda: [Accumulate(every=2), ClipAdaptive(clip=0.01)]),
    "clip percentile": Plan(lambda: [Accumulate(every=2), ClipPercentile(percentile=50.0)]),
    "parts": Plan(
        lambda: [
            Accumulate(every=2),
            on("0.*", ClipNorm(max_norm=0.05)),
            on("*.bias", named("biases", ClipAdaptive(clip=0.1))),
            every(2, named("value", ClipValue(clip_value=0.02))),
            EMA(decay=0.5, parameters="2.*"),
        ]
    ),
    "writing": Plan(lambda: [Lookahead(update_every=2), SwitchEMA(decay=0.5, switch_every=3)]),
    "strict": Plan(
        lambda: [
            Accumulate(every=3),
            ClipNorm(max_norm=0.1),
            SkipNonFinite(),
            SkipSpikes(by=MovingMean(ratio=30.0, warmup=1)),
            EMA(decay=0.5),
        ],
        6,
        {2: NAN, 7: 1e3},
        strict=True,
    ),
    "everything": Plan(
        lambda: [
            Accumulate(every=3),
            MixedPrecision(precision="fp16"),
            ClipNorm(max_norm=0.1),
            SkipNonFinite(),
            SkipSpikes(by=MovingMean(ratio=30.0, warmup=1)),
            EMA(decay=0.5),
        ],
        17,
        {2: NAN, 7: 1e3, 10: NAN},
    ),
}


def network() -> nn.Sequential:
    """Return a small network in double precision, whose sizes no number of ranks divides."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def micro_batch(plan: Plan, place: int) -> tuple[Tensor, Tensor]:
    """Return the rows of all ranks and what they weigh."""
    noise = torch.Generator().manual_seed(place)
    rows = torch.randn(ROWS, 5, generator=noise, dtype=torch.float64)
    rows[0] *= plan.poison.get(place, 1.0)
    return rows, torch.randint(1, 40, (ROWS,), generator=noise).double()


def loss_of(model: nn.Module, rows: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean loss over rows, by their weights if there are any."""
    each = (model(rows) - rows[:, :3].abs()).square().sum(1)
    return each.mean() if weights is None else (each * weights).sum() / weights.sum()


def wrapped(kind: str) -> nn.Module:
    """Return the network as one process or several train it: "one", "ddp", "fsdp" or "hsdp", and how."""
    model: Any = network()
    if kind.startswith("ddp"):
        options = {name: name.replace("_", " ") in kind for name in DDP_OPTIONS}
        model = DistributedDataParallel(model, **options)
    elif kind != "one":
        model = sharded(model, kind)
    return torch.compile(model, backend="eager") if kind.endswith("compiled") else model


DDP_OPTIONS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")


def sharded(model: nn.Sequential, kind: str) -> nn.Module:
    """Return the network under ``fully_shard``, its first layer by itself; "hsdp" keeps two copies of the shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard")) if kind == "hsdp" else None
    if kind == "fsdp alone":
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("world", "shard"))["shard"]
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def shell_of(model: nn.Module, hooks: Any, *, strict: bool = False) -> Shell:
    """Return a shell with momentum, which remembers every step."""
    return Shell(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), hooks, strict=strict)


def train(plan: Plan, kind: str, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Train by a plan and return what came of it, as whole tensors on every rank."""
    shell = shell_of(model := wrapped(kind), plan.hooks(), strict=plan.strict)
    size = ROWS // world
    mine, trail = slice(rank * size, rank * size + size), []
    for place in range(2 * plan.batches):
        rows, weights = (each[mine] for each in micro_batch(plan, place))
        with shell.batch():
            loss = loss_of(model, rows, weights if plan.weighted else None)
            shell.update(loss, float(weights.sum()) if plan.weighted else None)
        if place % plan.batches == plan.batches - 1:
            shell.flush()
        trail.append(whole(shell.state.params["main"]))
    return {"trail": trail, **outcome(shell)}


def outcome(shell: Shell) -> dict[str, Any]:
    """Return weights, averages and counters as plain data."""
    state = shell.state
    slots = {name: slot.get("shadow", {}) for name, slot in state.hooks.items()}
    return {
        "weights": whole(state.params["main"]),
        "shadow": {name: whole(shadow) for name, shadow in slots.items() if shadow},
        "statistics": dict(state.hooks["spikes"]["statistic"]) if of_losses(shell) else {},
        "scale": state.scaler.get("scale"),
        "clock": repr(state.clock),
    }


def of_losses(shell: Shell) -> bool:
    """Tell whether a pipeline learns from losses, whose statistics are doubles; norms are kept in single precision."""
    return any(isinstance(each, SkipSpikes) and each.of == "loss" for each in shell.pipeline)


def whole(tensors: Any) -> dict[str, Tensor]:
    """Return copies of tensors, gathered where they are sharded."""
    return {
        name: (leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf).detach().clone()
        for name, leaf in tensors.items()
    }


def exchanges(function: Callable[[], Any]) -> Counter[str]:
    """Return how often each kind of collective ran, those that torch starts by itself included."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return Counter(event.name for event in profile.events() if event.name.startswith("c10d::"))


def apart(one: Any, other: Any) -> float:
    """Return the largest difference of tensors in two outcomes; infinity if something else differs."""
    if isinstance(one, Tensor):
        same = one.shape == other.shape and one.isfinite().all() and other.isfinite().all()
        return float((one - other).abs().max()) if same else INF
    if isinstance(one, dict):
        return max((apart(one[key], other[key]) for key in one), default=0.0) if one.keys() == other.keys() else INF
    if isinstance(one, list):
        return max((apart(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    return 0.0 if one == other else INF


def train_named(rank: int, world: int, name: str, kind: str) -> dict[str, Any]:
    """Train by a plan in one of several processes."""
    return train(PLANS[name], kind, rank, world)


def train_alone(rank: int, name: str) -> dict[str, Any]:
    """Train by a plan as one of several processes that do not know of one another."""
    return train(PLANS[name], "fsdp alone")
