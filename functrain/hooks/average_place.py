"""Where an average is kept: the name of a device, and whether there is such a device."""

from __future__ import annotations

from typing import Any

import torch


def named_device(value: Any) -> Any:
    """Return the name of a device, which may be given as one; what is neither is left for pydantic to refuse.

    Raises:
        ValueError: a name that torch does not know, or a device that holds no values.

    >>> named_device(torch.device("cpu"))
    'cpu'
    """
    if isinstance(value, torch.device):
        value = str(value)
    if not isinstance(value, str):
        return value
    try:
        kind = torch.device(value).type
    except RuntimeError:
        kind = "meta"
    if kind == "meta":
        msg = f'device={value!r} is no device that keeps values; write "cpu" or "cuda:0"'
        raise ValueError(msg)
    return value


def require_device(name: str, device: str | None) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        ValueError: names the hook and the device.

    >>> require_device("ema", "cpu")
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        msg = f"{name!r} cannot keep its shadow on device={device!r}: {str(error).splitlines()[0]}"
        raise ValueError(msg) from error
