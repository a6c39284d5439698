"""Damaged, foreign and hostile checkpoints: the part is named, nothing is half loaded, executed or touched."""

from __future__ import annotations

import os
import resource
import shutil
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import functrain
from functrain import CheckpointError, Shell
from functrain.disk.layout import MANIFEST, TENSORS
from tests.disk import damage
from tests.shell.pipelines import run, shell_of
from tests.shell.records import differences, record

MANY = int(os.environ.get("FUNCTRAIN_DAMAGED", "0"))
"""How many damaged checkpoints are drawn; by default as many as the profile says."""
many = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    **({"max_examples": MANY} if MANY else {}),
)
NUMBERS = count()
HOOKS = functrain.fold(
    functrain.Accumulate(every=2), functrain.MixedPrecision(precision="fp16", init_scale=4.0),
    functrain.ClipNorm(max_norm=1.0), functrain.SkipSpikes(by=functrain.MovingMean(ratio=3.0)),
    functrain.EMA(decay=0.5),
)  # fmt: skip


def shell_at(steps: int, seed: int) -> Shell:
    """Return a shell that has come so far."""
    shell = shell_of(HOOKS, "adamw", seed)
    run(shell, ["plain"] * steps)
    return shell


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with two checkpoints of one run."""
    folder = tmp_path_factory.mktemp("good")
    functrain.save(folder / "other", shell_at(7, seed=1))
    functrain.save(folder / "one", shell_at(5, seed=1))
    return folder


@pytest.fixture(scope="module")
def victim() -> Shell:
    """Give a shell that is loaded into again and again, and must never change."""
    return shell_at(3, seed=0)


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Check that no example takes memory, and none calls what a pickle would call."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # kilobytes
    assert not Path("/tmp/functrain-was-here").exists()  # noqa: S108 - it is the point


def copied(good: Path, tmp_path: Path) -> Path:
    """Return a copy to be damaged, in a folder with the other checkpoint."""
    folder = tmp_path / str(next(NUMBERS))
    shutil.copytree(good, folder)
    return folder / "one"


def listing(folder: Path) -> list[tuple[str, int]]:
    """Return what is in a folder, with times."""
    return sorted((str(each), each.lstat().st_mtime_ns) for each in folder.rglob("*"))


@many
@given(kind=st.sampled_from(damage.CERTAIN), number=st.integers(0, 2**20))
def test_nothing_damaged_is_loaded(kind: damage.Damage, number: int, good: Path, victim: Shell, tmp_path: Path) -> None:
    """CheckpointError with the part, from a load into a shell; the shell, the folder and the world are as before."""
    path = copied(good, tmp_path)
    really = kind(path, number)
    before, files = record(victim), listing(tmp_path)
    if really:
        with pytest.raises(CheckpointError) as raised:
            victim.load(path)
        assert str(path) in str(raised.value)
        assert any(part in str(raised.value) for part in (MANIFEST, TENSORS, "does not fit: "))
        assert differences(before, record(victim)) == []
    assert listing(tmp_path) == files
    shutil.rmtree(path.parent)


@pytest.mark.filterwarnings("ignore:hooks :UserWarning")  # a hook that has lost its name is left out, and told
@many
@given(number=st.integers(0, 2**20))
def test_what_makes_no_sense_is_refused_or_harmless(number: int, good: Path, victim: Shell, tmp_path: Path) -> None:
    """Any value of the manifest replaced and sealed again: an error that leaves everything, or another good state."""
    path = copied(good, tmp_path)
    damage.nonsense(path, number)
    before = record(victim)
    try:
        victim.load(path)
    except ValueError:
        assert differences(before, record(victim)) == []
    else:
        victim.load(good / "one")
        for step in (5, 6):
            run(victim, ["plain"], step)
        victim.load(good / "other")
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("kind", damage.CERTAIN, ids=lambda kind: kind.__name__)
def test_reading_alone_refuses_it_too(kind: damage.Damage, good: Path, tmp_path: Path) -> None:
    """``functrain.load``, which has no shell to compare with; trees in other shapes are for it as good as any."""
    for number in (1, 2, 6, 1001):
        path = copied(good, tmp_path)
        if kind(path, number) and kind not in (damage.shapes, damage.dtypes, damage.traversal):
            with pytest.raises(CheckpointError, match=f"{path}"):
                functrain.load(path)
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                assert functrain.latest(path.parent) == path.parent / "other"


MESSAGES = [
    (damage.flip, -1, r"tensors\.safetensors: .* is not what was written \(crc32\)"),
    (damage.flip, 30, r"tensors\.safetensors: its tensors are not those of the manifest"),
    (damage.cut, 2, r"tensors\.safetensors: Error while deserializing header: header too small"),
    (damage.remove_part, 0, r"tensors\.safetensors: it is missing"),
    (damage.remove_part, 1, r"manifest\.json: it is missing"),
    (damage.link, 1, r"manifest\.json: it is a link"),
    (damage.no_file, 2, r"tensors\.safetensors: it is no regular file"),
    (damage.pickled, 1, r"manifest\.json: "),
    (damage.other_tensors, 0, r"tensors\.safetensors: .* is not what was written"),
    (damage.shapes, 1, r'does not fit: state\.params\["main"\]\["0\.weight"\]: stored a tensor \(3, 4\), expected'),
    (damage.dtypes, 1, r"does not fit: state\..*: stored torch\.int32, expected torch\.float32"),
    (damage.many, 1, r"manifest\.json: 8000000000 bytes are more than a manifest may have"),
    (damage.many, 0, r"manifest\.json: .* it has more than 2000000 nodes"),
    (damage.deep, 50_000, r"manifest\.json: it is nested too deeply"),
    (damage.numbers, 0, r"manifest\.json: NaN is no number in JSON"),
]


@pytest.mark.parametrize(("kind", "number", "told"), MESSAGES)
def test_the_part_is_named(
    kind: damage.Damage, number: int, told: str, good: Path, victim: Shell, tmp_path: Path
) -> None:
    """And what is wrong with it."""
    path = copied(good, tmp_path)
    kind(path, number)
    with pytest.raises(CheckpointError, match=told):
        victim.load(path)


def test_other_versions_and_formats_are_told(good: Path, victim: Shell, tmp_path: Path) -> None:
    """A later layout is not guessed at, and a violation of a law is no checkpoint."""
    path = copied(good, tmp_path)
    text = (path / MANIFEST).read_text()
    for form, told in (
        ("version 1", "it has version 2; this functrain reads version 1"),
        ("functrain ", "its format is"),
    ):
        (path / MANIFEST).write_text(text.replace(form, form.replace("1", "2") if "1" in form else "", 1))
        with pytest.raises(CheckpointError, match=told):
            victim.load(path)


def test_what_is_no_folder_is_told(tmp_path: Path, victim: Shell) -> None:
    """A path of nothing, and one of a file."""
    with pytest.raises(FileNotFoundError):
        victim.load(tmp_path / "nowhere")
    torch.save({}, tmp_path / "pickle.pt")
    with pytest.raises(CheckpointError, match="is no checkpoint: a checkpoint is a folder"):
        functrain.load(tmp_path / "pickle.pt")


def test_no_attribute_of_a_scheduler_is_hidden(good: Path, victim: Shell, tmp_path: Path) -> None:
    """A scheduler of torch writes whatever it is given; a method is not for the file to give."""

    def change(content: dict[str, Any]) -> None:
        content["parts"]["schedulers"]["dict"][0][1]["dict"].append(["step", 3])

    path = copied(good, tmp_path)
    damage.reseal(path, change)
    with pytest.raises(CheckpointError, match="would write over 'step' of StepLR"):
        victim.load(path)
