"""Many numbers from a device by one transfer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from functrain._foreach import whole

Place: TypeAlias = tuple[Any, Any]
"""Where a tensor is held: a dict and the name in it, or a list and the index."""


def kept(value: Any) -> Any:
    """Return a copy of a tensor without its graph, which nothing writes over later; anything else as it is.

    A copy, since the storage may be a large batch's, a donated state's, or that of a captured graph. Tensors in
    containers are copied as well, so that the containers become dicts and lists of the record's own.

    >>> kept((torch.tensor(0.5), {"count": 3}))
    [tensor(0.5000), {'count': 3}]
    """
    if type(value) is Tensor:
        return value.detach().clone()
    if isinstance(value, Tensor):
        return whole(value.detach()).clone()
    if isinstance(value, Mapping):
        return {name: kept(each) for name, each in cast("Mapping[Any, Any]", value).items()}
    return [kept(each) for each in cast("Sequence[Any]", value)] if isinstance(value, list | tuple) else value


def fetch(records: Iterable[dict[str, Any]]) -> None:
    """Put numbers in place of the tensors that records hold: one transfer from each device.

    A tensor of several elements becomes a flat list.

    >>> record = {"loss": torch.tensor(0.5), "count": torch.tensor(3)}
    >>> fetch([record])
    >>> record
    {'loss': 0.5, 'count': 3}
    """
    by_device: dict[torch.device, list[Place]] = {}
    for holder, name in _places(records):
        by_device.setdefault(holder[name].device, []).append((holder, name))
    for places in by_device.values():
        found = _read([holder[name] for holder, name in places])
        for (holder, name), value in zip(places, found, strict=True):
            holder[name] = value


def _places(holders: Iterable[dict[str, Any]]) -> Iterator[Place]:
    """Yield where tensors are, also in dicts and lists inside."""
    for holder in holders:
        yield from _inside(holder, holder.items())


def _inside(holder: Any, items: Iterable[tuple[Any, Any]]) -> Iterator[Place]:
    for name, value in items:
        if isinstance(value, Tensor):
            yield holder, name
        elif isinstance(value, dict):
            yield from _inside(value, cast("dict[Any, Any]", value).items())
        elif isinstance(value, list):
            yield from _inside(value, enumerate(cast("list[Any]", value)))


def _flat(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor side by side, whatever its layout."""
    tensor = tensor.detach()
    if tensor.is_nested:
        return torch.cat([each.reshape(-1) for each in tensor.unbind()])
    if tensor.is_quantized:
        return tensor.dequantize().reshape(-1)
    return (tensor if tensor.layout is torch.strided else tensor.to_dense()).reshape(-1)


def _read(tensors: Sequence[Tensor]) -> list[Any]:
    """Return the values of tensors of one device, in order."""
    by_dtype: dict[torch.dtype, list[int]] = {}
    for place, each in enumerate(tensors := [_flat(each) for each in tensors]):
        by_dtype.setdefault(each.dtype, []).append(place)
    # As bytes, so that nothing is rounded to a common dtype; the wide ones first, so that each part is aligned.
    parts = sorted(by_dtype.items(), key=lambda part: -part[0].itemsize)
    flat = [torch.cat([tensors[place] for place in places]) for _, places in parts]
    packed = transferred(torch.cat([each.view(torch.uint8) for each in flat]))
    found: list[Any] = [None] * len(tensors)
    pieces = torch.split(packed, [each.nbytes for each in flat])
    for (dtype, places), values in zip(parts, pieces, strict=True):
        numbers = cast("list[Any]", values.view(dtype).tolist())
        begin = 0
        for place in places:
            end = begin + tensors[place].numel()
            found[place], begin = numbers[begin] if end == begin + 1 else numbers[begin:end], end
    return found


def transferred(packed: Tensor) -> Tensor:
    """Return a tensor on the CPU: the only line that waits for a device."""
    return packed.cpu()
