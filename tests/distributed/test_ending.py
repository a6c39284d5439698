"""How a process of a group ends."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys, threading, torch
import torch.distributed as dist
from functrain.shell.collectives import Ranks

def worker():
    work.wait()
    os.write(1, b"let go")

sys.setswitchinterval(100)  # nobody is given the interpreter who does not wait for it
work = threading.Event()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
threading.Thread(target=worker, daemon=True).start()
Ranks(dist.group.WORLD, torch.device("cpu"))
work.set()
"""


def test_threads_let_go_of_their_work_before_the_interpreter_ends() -> None:
    """A thread that only needs the interpreter once more gets it; one of gloo would abort the process instead."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "let go"
