"""Folders that are there whole or not at all: names, rotation, full disks, and what nobody may write."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

import functrain
from functrain import EMA, Checkpoint, CheckpointError, TrainState, latest, load, save
from functrain.disk import Background, folder, rotate, tensor_file
from functrain.disk.folder import PREFIX
from tests.scalars import Weight, run, sgd_shell


def state(step: int = 0, size: int = 4) -> TrainState:
    """Return a state that has come so far."""
    made = TrainState(params={"main": {"w": torch.full((size,), float(step))}})
    return made.replace(clock=made.clock.replace(step=step))


def weight(path: Path) -> float:
    """Return what a checkpoint holds."""
    return load(path).state.params["main"]["w"][0].item()


def names(parent: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(each.name for each in parent.iterdir())


def break_tensors(path: Path) -> None:
    """Flip the last byte."""
    with (path / "tensors.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    """Neither a checkpoint nor anything else."""
    path = save(tmp_path / "one", state(1))
    with pytest.raises(FileExistsError, match="never written over"):
        save(path, state(2))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="never written over"):
        save(tmp_path / "file", state(2))
    assert (weight(path), names(tmp_path)) == (1.0, ["file", "one"])


def test_folders_above_are_made(tmp_path: Path) -> None:
    """As many as it takes."""
    assert weight(save(tmp_path / "a" / "b" / "c", state(3))) == 3.0


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """A module is no shell."""
    with pytest.raises(TypeError, match="needs a Shell or a TrainState, got Weight"):
        save(tmp_path / "one", Weight())  # type: ignore[arg-type]


def test_a_shell_in_an_open_batch_is_not_saved(tmp_path: Path) -> None:
    """Half a micro-batch cannot be gone on with; after its update it can."""
    shell = sgd_shell(model := Weight(), [])
    with shell.batch():
        with pytest.raises(RuntimeError, match=r"functrain\.save\(\) inside an open batch"):
            save(tmp_path / "one", shell)
        shell.update(model(1.0))
        save(tmp_path / "one", shell)
    shell.load(tmp_path / "one")


def test_saving_changes_no_run(tmp_path: Path) -> None:
    """A run that was saved, at once and in the background, is bitwise one that was not."""
    hooks = functrain.Accumulate(every=2) + EMA(decay=0.5)
    plain, saved = sgd_shell(Weight(), hooks), sgd_shell(Weight(), hooks)
    with Background() as background:
        for place in range(5):
            run(plain, [1.5])
            run(saved, [1.5])
            save(tmp_path / f"{place}", saved)
            background.save(tmp_path / f"{place} in the background", saved)
    assert plain.state.params["main"]["w"] == saved.state.params["main"]["w"]
    one, two = (load(tmp_path / f"4{how}").parts["state"] for how in ("", " in the background"))
    assert repr(one) == repr(two)


def test_keep_leaves_the_newest(tmp_path: Path) -> None:
    """And ``latest`` finds it."""
    for step in range(5):
        save(tmp_path / f"step{step}", state(step), keep=2)
    assert names(tmp_path) == ["step3", "step4"]
    assert latest(tmp_path) == tmp_path / "step4"


@pytest.mark.parametrize("keep", [0, -1, True, 1.5])
def test_keep_must_keep_something(keep: Any, tmp_path: Path) -> None:
    """No checkpoint at all is not kept by mistake; nothing is written."""
    with pytest.raises(ValueError, match="keep must be a count of at least 1"):
        save(tmp_path / "one", state(), keep=keep)
    assert names(tmp_path) == []


def test_rotation_never_removes_the_last_good_one(tmp_path: Path) -> None:
    """Damaged ones are not counted, however new they are."""
    for step in range(4):
        save(tmp_path / f"step{step}", state(step))
    for step in (2, 3):
        break_tensors(tmp_path / f"step{step}")
    (tmp_path / "step3" / "manifest.json").write_text("{}")
    assert rotate(tmp_path, 1) == [tmp_path / "step0"]
    with pytest.warns(UserWarning, match="skipped step"):
        assert latest(tmp_path) == tmp_path / "step1"


def test_latest_skips_what_is_damaged_and_says_so(tmp_path: Path) -> None:
    """Also where only the last byte of the last tensor is wrong."""
    for step in range(3):
        save(tmp_path / f"step{step}", state(step))
    break_tensors(tmp_path / "step2")
    with pytest.warns(UserWarning, match=r'skipped step2, which is damaged: .*random\["cpu"\] is not what was written'):
        assert latest(tmp_path) == tmp_path / "step1"
    for step in range(2):
        break_tensors(tmp_path / f"step{step}")
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(CheckpointError, match=r"every checkpoint .* is damaged"),
    ):
        latest(tmp_path)


def test_latest_of_nothing_is_none(tmp_path: Path) -> None:
    """No folder, an empty one, one of other things, and links."""
    assert latest(tmp_path / "nowhere") is None
    (tmp_path / "else").mkdir()
    (tmp_path / "file").write_text("")
    elsewhere = save(tmp_path / "else" / "one", state(1))
    (tmp_path / "link").symlink_to(elsewhere)
    assert latest(tmp_path) is None


def test_the_latest_is_the_one_written_last(tmp_path: Path) -> None:
    """A run that went back to an earlier step, and goes on from there, is found before what it has left behind."""
    for name, step in (("a", 3), ("b", 9), ("c", 4)):
        save(tmp_path / name, state(step))
    assert latest(tmp_path) == tmp_path / "c"


def test_an_average_alone_is_a_plain_state_dict(tmp_path: Path) -> None:
    """The package safetensors reads it, and a module takes it; one that is there is replaced."""
    from safetensors.torch import load_file

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    shell = functrain.Shell(model, torch.optim.SGD(model.parameters(), lr=0.1), EMA(decay=0.5))
    with pytest.raises(RuntimeError, match="has not initialized"):
        functrain.save_average(tmp_path / "ema.safetensors", shell)
    for _ in range(2):
        with shell.batch():
            shell.update(model(torch.randn(3, 2)).square().mean())
        functrain.save_average(tmp_path / "ema.safetensors", shell)
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    other.load_state_dict(load_file(tmp_path / "ema.safetensors"))
    for name, value in shell.averaged_module().state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert names(tmp_path) == ["ema.safetensors"]


def test_who_may_read_an_average_stays_so(tmp_path: Path) -> None:
    """A file that was made private is private after it has been written anew."""
    run(shell := sgd_shell(Weight(), EMA()), [-1.0])
    path = functrain.save_average(tmp_path / "ema.safetensors", shell)
    path.chmod(0o600)
    functrain.save_average(path, shell)
    assert path.stat().st_mode & 0o777 == 0o600


def test_safetensors_reads_a_checkpoint(tmp_path: Path) -> None:
    """Every dtype that it knows, under the place in the state; others are bytes there, and themselves here."""
    from safetensors.torch import load_file

    known = [torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64, torch.float8_e5m2]
    tensors = {
        str(dtype): torch.tensor([1, 0, 1]).to(dtype) for dtype in [*known, torch.complex128, torch.float8_e8m0fnu]
    }
    tensors |= {"empty": torch.empty(0, 3), "strided": torch.arange(6.0).reshape(2, 3).T, "one": torch.tensor(2.0)}
    path = save(tmp_path / "one", TrainState(buffers={"main": tensors}))
    found = load_file(path / "tensors.safetensors")
    again = load(path).state.buffers["main"]
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(
            again[name].contiguous().reshape(-1).view(torch.uint8), tensor.contiguous().reshape(-1).view(torch.uint8)
        )
        stored = found[f'state.buffers["main"]["{name}"]']
        assert stored.dtype == (
            torch.uint8 if tensor.dtype in (torch.complex128, torch.float8_e8m0fnu) else tensor.dtype
        )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of two megabytes, where one can be mounted."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("nothing may be mounted here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)  # noqa: S607 - it was found a moment ago


def test_a_full_disk_leaves_what_was_there(small_disk: Path) -> None:
    """The error says that nothing was written; nothing half written stays, and the old checkpoint loads."""
    path = save(small_disk / "one", state(1))
    shell = sgd_shell(Weight([0.0] * 100_000), EMA())
    run(shell, [1.0])
    functrain.save_average(small_disk / "ema", shell)
    with pytest.raises(OSError, match="No space left on device: no checkpoint was written") as raised:
        save(small_disk / "two", state(2, size=10**6))
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(small_disk / "two"))
    with Background() as background:
        background.save(small_disk / "three", state(3, size=10**6))
        with pytest.raises(OSError, match="No space left"):
            background.save(small_disk / "four", state(4))
    average = (small_disk / "ema").read_bytes()
    run(shell, [1.0])
    (small_disk / "filling").write_bytes(b"0" * 1_500_000)
    with pytest.raises(OSError, match="nothing was written, and what was there is as before"):
        functrain.save_average(small_disk / "ema", shell)
    assert (small_disk / "ema").read_bytes() == average
    assert (latest(small_disk), weight(path)) == (path, 1.0)
    assert names(small_disk) == ["ema", "filling", "one"]


def test_a_read_only_folder_leaves_what_was_there(small_disk: Path) -> None:
    """The error says so, and the old checkpoint loads."""
    path = save(small_disk / "one", state(1))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)  # noqa: S607 - the same
    with pytest.raises(OSError, match="Read-only file system: no checkpoint was written"):
        save(small_disk / "two", state(2))
    assert (weight(path), latest(small_disk), names(small_disk)) == (1.0, path, ["one"])


def test_a_failing_disk_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where nothing can be mounted, too: a write that fails half-way."""

    def failing(specs: object, path: Path) -> None:
        raise SafetensorError("Error while serializing: I/O error: Input/output error (os error 5)")

    path = save(tmp_path / "one", state(1))
    monkeypatch.setattr(tensor_file, "serialize_file", failing)
    with pytest.raises(OSError, match="Input/output error: no checkpoint was written"):
        save(tmp_path / "two", state(2))
    assert (names(tmp_path), weight(path)) == (["one"], 1.0)
    assert not [each for each in threading.enumerate() if each.name.startswith("functrain")]


def test_leftovers_are_swept(tmp_path: Path) -> None:
    """Of a process that was killed; not what another one is writing at the moment, and not what has just been made."""
    for name in ("killed", "young", "held"):
        (tmp_path / f"{PREFIX}{name}").mkdir()
        (tmp_path / f"{PREFIX}{name}" / "tensors.safetensors").write_bytes(b"half")
    long_ago = time.time() - 1000
    for name in ("killed", "held"):
        os.utime(tmp_path / f"{PREFIX}{name}", (long_ago, long_ago))
    held = os.open(tmp_path / f"{PREFIX}held", folder.FOLDER)
    folder._lock(held)
    save(tmp_path / "one", state(1))
    os.close(held)
    assert names(tmp_path) == [f"{PREFIX}held", f"{PREFIX}young", "one"]
    assert latest(tmp_path) == tmp_path / "one"


def test_a_background_that_failed_says_so_at_the_end(tmp_path: Path) -> None:
    """At close; on an exception that is on its way it is a note. No thread is left."""
    path = save(tmp_path / "one", state(1))
    background = Background()
    background.save(path, state(2))
    with pytest.raises(FileExistsError):
        background.close()
    background.close()
    with pytest.raises(KeyError) as raised, Background() as again:  # noqa: PT012 - the second raises
        again.save(path, state(2))
        raise KeyError("mine")
    assert "besides, a checkpoint could not be written" in raised.value.__notes__[0]
    assert not [each for each in threading.enumerate() if each.name.startswith("functrain")]


def test_a_background_writes_what_was_at_that_moment(tmp_path: Path) -> None:
    """What is written over in place afterwards is not in it."""
    mine = state(1, size=10**6)
    with Background() as background:
        background.save(tmp_path / "one", mine)
        mine.params["main"]["w"].zero_()
    assert weight(tmp_path / "one") == 1.0


def test_saving_by_hand_names_by_progress(tmp_path: Path) -> None:
    """The same progress is saved once; a run that went back gets another name."""
    saving = Checkpoint(tmp_path, keep=3)
    for step in (1, 1, 2):
        saving.save(state(step))
    again = Checkpoint(tmp_path, keep=3)
    again.save(state(1))
    first = "step00000001-batch00000000-epoch0000"
    assert names(tmp_path) == [first, f"{first}-2", "step00000002-batch00000000-epoch0000"]
    assert latest(tmp_path) == tmp_path / f"{first}-2"


@pytest.mark.parametrize("every", [0, -3, True, 2.0])
def test_every_must_be_a_count(every: Any, tmp_path: Path) -> None:
    """A rhythm of no steps is none."""
    with pytest.raises(ValueError, match="every must be a count"):
        Checkpoint(tmp_path, every=every)
