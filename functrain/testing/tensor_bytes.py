"""Tensors as JSON: dtype, shape, and the bytes in base64, so that every bit comes back."""

from __future__ import annotations

from base64 import b64decode, b64encode
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from functrain._encoding import dtype_named, shape_of


def tensor_record(tensor: Tensor) -> dict[str, Any]:
    """Return what JSON can hold of a dense tensor: everything but device and strides.

    Raises:
        ValueError: a sparse or quantized tensor.

    >>> tensor_record(torch.tensor([0.0, 50.0], dtype=torch.bfloat16))
    {'dtype': 'bfloat16', 'shape': [2], 'data': 'AABIQg=='}
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError(f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} cannot be stored")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    raw = bytes(cast("list[int]", plain.view(torch.uint8).tolist())) if plain.numel() else b""
    name = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": name, "shape": list(tensor.shape), "data": b64encode(raw).decode("ascii")}


def tensor_of_record(record: Any) -> Tensor:
    """Return the tensor of a record, on the CPU.

    Raises:
        ValueError: no record of a tensor; says what is wrong with it.

    >>> tensor_of_record({"dtype": "bfloat16", "shape": [2], "data": "AABIQg=="})
    tensor([ 0., 50.], dtype=torch.bfloat16)
    """
    dtype, shape, data = (
        dtype_named(record["dtype"]),
        shape_of(record["shape"]),
        b64decode(record["data"], validate=True),
    )
    if len(data) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are no tensor of shape {shape} and dtype {dtype}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
