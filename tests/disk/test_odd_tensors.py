"""Tensors and names that hardly anybody has: they come back as they were, or are refused before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import functrain
from functrain import EMA, Shell, TrainState, load, save
from tests.scalars import Weight, run, sgd_shell

WAVES = torch.arange(12.0).reshape(3, 4).to(torch.complex64) * (1 + 2j)
ODD = {
    "conjugated": WAVES.conj(),
    "adjoint": WAVES.mH,
    "negated": WAVES.conj().imag,
    "expanded": torch.ones(1).expand(3, 5),
    "overlapping": torch.arange(10.0).as_strided((4, 4), (1, 1)),
    "stepped": torch.arange(36.0).reshape(6, 6)[::2, ::3],
    "channels last": torch.arange(16.0).reshape(1, 4, 2, 2).to(memory_format=torch.channels_last),
    "nothing": torch.empty(2, 0, 3, dtype=torch.complex128),
    "one": torch.tensor(1j, dtype=torch.complex128),
    "\n'\"\\\x00\u2028": torch.tensor(2.0),
    "__metadata__": torch.tensor(4.0),
}


class Named(nn.Module):
    """A model of one parameter of any name and dtype."""

    def __init__(self, name: str, value: Tensor) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(value))


def averaging(name: str, value: Tensor) -> Shell:
    """Return a shell that has averaged a model once."""
    model = Named(name, value)
    shell = sgd_shell(model, EMA())
    with shell.batch():
        shell.update(model.get_parameter(name).abs().sum())
    return shell


def freed(tensor: Tensor, left: int = 0) -> Tensor:
    """Return a tensor whose storage has been given back, as sharding does with weights that others hold."""
    tensor.untyped_storage().resize_(left)
    return tensor


def test_odd_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    """Views, expanded and overlapping ones, empty ones, and any name: values, dtype and shape are the same."""
    again = load(save(tmp_path / "one", TrainState(buffers={"main": ODD}))).state.buffers["main"]
    for name, tensor in ODD.items():
        assert (again[name].dtype, again[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(again[name], tensor)


def test_truth_of_an_odd_byte_is_stored_as_truth(tmp_path: Path) -> None:
    """A bool whose byte is neither 0 nor 1 counts as true, and what was saved can be loaded."""
    odd = torch.tensor([0, 1, 2, 255], dtype=torch.uint8).view(torch.bool)
    path = save(tmp_path / "one", TrainState(buffers={"main": {"odd": odd}}))
    assert load(path).state.buffers["main"]["odd"].view(torch.uint8).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch._to_functional_tensor(torch.ones(2)),
        lambda: torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided),
        lambda: freed(torch.ones(2)),
        lambda: freed(torch.ones(8)[4:], 8),
        lambda: torch.ones(3).to_mkldnn(),
        lambda: torch.eye(2).to_sparse(),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_what_has_no_bytes_of_its_own_is_refused(made: object, tmp_path: Path) -> None:
    """The error names the place, and nothing is written."""
    assert callable(made)
    with pytest.raises(ValueError, match=r'state\.buffers\["main"\]\["b"\] is a tensor of kind'):
        save(tmp_path / "one", TrainState(buffers={"main": {"b": made()}}))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("__metadata__", torch.ones(2), "'__metadata__' is no name that a safetensors file can hold"),
        ("\ud800", torch.ones(2), r"'\\ud800' is no name that a safetensors file can hold"),
        ("w", torch.ones(2, dtype=torch.complex128), "w is torch.complex128, which safetensors does not know"),
    ],
)
def test_an_average_that_no_reader_could_open_is_refused(name: str, value: Tensor, told: str, tmp_path: Path) -> None:
    """A name or a dtype that the format lacks would give a file that is no state dict; what was there stays."""
    path = tmp_path / "ema.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(ValueError, match=told):
        functrain.save_average(path, averaging(name, value))
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"before", [path])


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_may_be_read_by_whom_the_umask_says(mask: int, tmp_path: Path) -> None:
    """A checkpoint and an average get the mode that any new file gets."""
    before = os.umask(mask)
    try:
        shell = sgd_shell(Weight(), EMA())
        run(shell, [1.0])
        path, average = save(tmp_path / "one", shell), functrain.save_average(tmp_path / "ema", shell)
    finally:
        os.umask(before)
    assert {each.stat().st_mode & 0o777 for each in (*path.iterdir(), average)} == {0o666 & ~mask}
    assert load_file(average).keys() == {"w"}
