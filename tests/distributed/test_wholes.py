"""Whole tensors of sharded runs on the first rank, and copies in the middle of a window."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed import wholes
from tests.distributed.pool import Pool
from tests.distributed.runs import apart


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_run_is_gathered_on_the_first_rank(two: Pool, tmp_path: Path, kind: str) -> None:
    """A process alone goes on from it as the ranks do; the average is that of the shards; the others hold nothing."""
    check_gathered(two, tmp_path / "ema.safetensors", kind)


def test_copies_of_shards_are_gathered_once(four: Pool, tmp_path: Path) -> None:
    """The same where two ranks hold the same part."""
    check_gathered(four, tmp_path / "ema.safetensors", "hsdp")


def check_gathered(pool: Pool, path: Path, kind: str) -> None:
    """Gather, and go on from it."""
    first, *others = pool.run(wholes.gathering, kind, pool.world, str(path))
    assert all(each["state"] == each["average"] == {} for each in others)
    assert apart(first["expected"], first["average"]) == 0.0
    assert apart(first["expected"], dict(wholes.file_of(path))) == 0.0
    assert all(type(leaf) is torch.Tensor for leaf in first["average"].values())
    assert apart(first["later"], wholes.taken_over(first["state"])) < 1e-10


def test_shards_are_not_saved_as_a_whole(two: Pool, tmp_path: Path) -> None:
    """Every rank says what to write instead, before anything is trained or written."""
    for said in two.run(wholes.refused, str(tmp_path / "run")):
        whole = 'needs whole tensors, and state.params["main"]["0.weight"] is sharded over ranks; write shell.'
        assert said["save"] == f"functrain.save() {whole}save_sharded(path)"
        assert said["load"] == said["resume"] == f"shell.load() {whole}load_sharded(path)"
        assert said["pure"].startswith(f"shell.to_pure() {whole}gathered_state_dict(), and load it into")
        assert said["fit"].startswith(f"fit(checkpoint=...) {whole}save_sharded(path) between two calls of fit")
    assert not list(tmp_path.iterdir())


def test_nobody_copies_what_shards_keep_to_themselves(two: Pool) -> None:
    """In the middle of a window the gradients of a sharded module are out of reach, and it is said."""
    for said in two.run(wholes.looking, "fsdp"):
        for name in ("snapshot", "state_dict", "load_state_dict"):
            assert said[name].startswith("a window is open, and fully_shard keeps the gradients of its micro-batches")
        assert said["gathered_state_dict"].startswith("a window is open: on several ranks its gradients are in parts")


@pytest.mark.parametrize("between", [1, 2, 3])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_restored_run_has_nothing_of_the_window_it_left(two: Pool, kind: str, between: int) -> None:
    """Back from the middle of a window or from a boundary, training goes on bitwise as if nobody had left."""
    for straight, detour in two.run(wholes.returning, kind, between):
        assert apart(straight, detour) == 0.0


def test_replicas_are_not_saved_in_the_middle_of_a_window(two: Pool) -> None:
    """A file of one rank would hold the gradients of its own micro-batches only."""
    for said in two.run(wholes.looking, "ddp"):
        for name in ("save", "gathered_state_dict"):
            assert said.pop(name).startswith("a window is open: on several ranks its gradients are in parts")
        assert set(said.values()) == {""}


def test_replicas_resume_in_the_middle_of_a_window(two: Pool) -> None:
    """Each rank holds the gradients of its own micro-batches, and goes on bitwise."""
    for expected, found in two.run(wholes.resuming_inside):
        assert [apart(expected, each) for each in found] == [0.0, 0.0]
