"""Processes that wait for jobs: started once, since each takes seconds to import torch."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class JobError(AssertionError):
    """What went wrong in the processes, rank by rank."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with closing(socket.socket()) as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def serve(rank: int, world: int, port: int, timeout: float, pipe: Any) -> None:
    """Join the group, then run one job after the other; what a job raises goes back as text."""
    torch.set_num_threads(1)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world, timeout=timedelta(seconds=timeout))
    while (job := pipe.recv()) is not None:
        function, arguments = job
        try:
            pipe.send((True, function(rank, *arguments)))
        except Exception:  # noqa: BLE001 - the test shows it
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


def _answer(pipe: Any) -> tuple[bool, Any]:
    """Return what a process has found, or that it is gone."""
    try:
        return pipe.recv() if pipe.poll(60) else (False, "no answer in a minute")
    except EOFError:
        return False, "died"


class Pool:
    """Ranks that run the same function; ``run`` returns what each of them found."""

    def __init__(self, world: int, timeout: float = 30) -> None:
        """Start the processes, whose exchanges fail after some seconds."""
        self.world, port = world, free_port()
        context = mp.get_context("spawn")
        pairs = [context.Pipe() for _ in range(world)]
        self._pipes = [mine for mine, _ in pairs]
        self._processes = [
            context.Process(target=serve, args=(rank, world, port, timeout, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pairs:
            theirs.close()  # so that the end of a process is the end of its pipe

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run ``function(rank, *arguments)`` on every rank; it and what it returns must pickle."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        found = [_answer(pipe) for pipe in self._pipes]
        if failed := {rank: said for rank, (fine, said) in enumerate(found) if not fine}:
            raise JobError("\n".join(f"rank {rank}:\n{said}" for rank, said in failed.items()))
        return [answer for _, answer in found]

    def close(self) -> None:
        """Let the processes end; those that do not within a while are killed."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
