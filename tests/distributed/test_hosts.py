"""Two hosts: network namespaces with an address each and a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.distributed.hosts import FIRST, SECOND
from tests.distributed.runs import PLANS, apart, train

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def ip(*words: str) -> None:
    """Configure the network."""
    subprocess.run(["ip", *words], check=True, capture_output=True)  # noqa: S607 - where it lies is the system's


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Return the names of two hosts that are connected by a cable, whose ends are called `cable`."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs the right to make network namespaces")
    names = (f"first{os.getpid()}", f"second{os.getpid()}")
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        except subprocess.CalledProcessError:
            pytest.skip("needs the right to make network namespaces")
        for name, address in zip(names, (FIRST, SECOND), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)  # noqa: S607 - as above


@contextmanager
def started(hosts: tuple[str, str], folder: Path) -> Generator[list[subprocess.Popen[bytes]]]:
    """Start both hosts; in the end neither runs."""
    program = [sys.executable, "-m", "tests.distributed.hosts"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "cable"}
    commands = [["ip", "netns", "exec", name, *program, str(r), str(folder)] for r, name in enumerate(hosts)]
    processes = [subprocess.Popen(command, cwd=ROOT, env=environment) for command in commands]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for(paths: list[Path]) -> None:
    """Wait until files are there, a minute at most."""
    end = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_two_hosts_equal_one_process_until_their_cable_is_cut(hosts: tuple[str, str], tmp_path: Path) -> None:
    """Over a network of their own they train as one process does; a cut in mid-run ends both with a sentence."""
    with started(hosts, tmp_path) as processes:
        wait_for([tmp_path / f"{rank}.going" for rank in range(2)])
        ip("-n", hosts[0], "link", "set", "cable", "down")
        for process in processes:
            process.wait(30)
    expected = train(PLANS["everything"], "one")
    for rank in range(2):
        assert apart(expected, torch.load(tmp_path / f"{rank}.pt")) < 1e-10
        said = (tmp_path / f"{rank}.txt").read_text(encoding="utf-8")
        assert f"functrain: rank {rank} of 2 lost touch with the others" in said
