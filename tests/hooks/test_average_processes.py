"""Averages where several processes train one model: rows e11 and e15."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from functrain import EMA, Lookahead, Shell, SwitchEMA

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo"),
]


def network() -> nn.Module:
    """Return a small network, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def started(rank: int, world: int, port: int, task: Any, folder: str) -> None:
    """Join the group, run the task, and leave it."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        task(rank, folder)
    finally:
        dist.destroy_process_group()


def spawned(world: int, task: Any, folder: Path) -> Any:
    """Run a task in processes of their own, and return what the first one saved."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(started, (world, port, task, str(folder)), nprocs=world)
    return torch.load(folder / "found.pt")


def train(shell: Shell, model: nn.Module, rank: int = 0) -> None:
    """Run three steps; each process has data of its own."""
    for place in range(3):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * rank + place))
        with shell.batch():
            shell.update(model(x).square().mean())


def parallel(rank: int, folder: str) -> None:
    """Train in DDP, compiled on one process, and save names and averages."""
    model = nn.parallel.DistributedDataParallel(network())
    run = torch.compile(model, backend="eager") if dist.get_world_size() == 1 else model
    shell = Shell(run, torch.optim.SGD(model.parameters(), lr=0.1), EMA(decay=0.5))
    train(shell, run, rank)
    averaged = shell.averaged_module()
    found = {"shadow": dict(shell.state.hooks["ema"]["shadow"]), "module": averaged.state_dict()}
    if rank == 0:
        torch.save({**found, "kind": type(averaged).__name__}, Path(folder) / "found.pt")


@pytest.mark.parametrize("world", [1, 2])
def test_e11_plain_names_under_ddp(world: int, tmp_path: Path) -> None:
    """In DDP, and under compile around it, names are plain and the shadow follows the mean gradient's weights."""
    found = spawned(world, parallel, tmp_path)
    model = network()
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), EMA(decay=0.5))
    for place in range(3):
        with shell.batch():
            losses = [
                model(torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * rank + place))).square().mean()
                for rank in range(world)
            ]
            shell.update(torch.stack(losses).mean())
    right = shell.state.hooks["ema"]["shadow"]
    assert list(found["shadow"]) == list(found["module"]) == list(right)
    assert found["kind"] == "Sequential"
    for name, leaf in right.items():
        torch.testing.assert_close(found["shadow"][name], leaf)
        assert torch.equal(found["module"][name], found["shadow"][name])


def sharded(rank: int, folder: str) -> None:
    """Train a sharded model with every kind of average, and save them whole."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    fully_shard(model := network())
    hooks = [EMA(decay=0.5), EMA(decay=0.5, name="kept", dtype="float64", finite_only=True), *writers()]
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks)
    train(shell, model)
    names = [each.name for each in hooks]
    shadows = {name: shell.state.hooks[name]["shadow"] for name in names}
    kinds = {isinstance(leaf, DTensor) for held in shadows.values() for leaf in held.values()}
    whole = {name: {key: leaf.full_tensor() for key, leaf in held.items()} for name, held in shadows.items()}
    params = {key: leaf.full_tensor() for key, leaf in shell.state.params["main"].items()}
    with shell.averaged("ema"):
        shown = {key: leaf.detach().full_tensor() for key, leaf in model.named_parameters()}
    if rank == 0:
        found = {"kinds": kinds, "shadows": whole, "params": params, "shown": shown}
        torch.save(found, Path(folder) / "found.pt")


def writers() -> list[Any]:
    """Return averages that write into the weights."""
    return [SwitchEMA(switch_every=2, decay=0.5), Lookahead(update_every=3)]


def test_e15_sharded_shadows(tmp_path: Path) -> None:
    """Two ranks: shadows are DTensors and equal the averages of the whole tensors, also where they are written back."""
    found = spawned(2, sharded, tmp_path)
    model = network()
    hooks = [EMA(decay=0.5), EMA(decay=0.5, name="kept", dtype="float64"), *writers()]
    shell = Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), hooks)
    train(shell, model)
    assert found["kinds"] == {True}
    for each in hooks:
        for name, leaf in shell.state.hooks[each.name]["shadow"].items():
            torch.testing.assert_close(found["shadows"][each.name][name], leaf)
    for name, leaf in shell.state.params["main"].items():
        torch.testing.assert_close(found["params"][name], leaf)
        torch.testing.assert_close(found["shown"][name], found["shadows"]["ema"][name])
