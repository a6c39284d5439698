"""Arithmetic over many tensors at once: in place on donated leaves, leaf by leaf on all others.

``torch._foreach_*`` is what the optimizers of torch are made of, but it has no vmap rule and takes one dtype and device
at a time. Each operation here therefore has two forms that agree bitwise: the caller of the in-place form owns the
leaves, the functional form is what ``vmap`` and ``torch.compile`` trace.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from functrain._select import Number, beside

Kind: TypeAlias = tuple[torch.device, torch.dtype]


def grouped(tensors: Iterable[Tensor]) -> dict[Kind, list[Tensor]]:
    """Return the tensors by device and dtype, each group and the groups in the order given.

    >>> len(grouped([torch.zeros(1), torch.zeros(2), torch.zeros(1, dtype=torch.float64)]))
    2
    """
    groups: dict[Kind, list[Tensor]] = {}
    kind: Any = (None, None)
    group: list[Tensor] = []
    for tensor in tensors:
        device, dtype = tensor.device, tensor.dtype
        if dtype is not kind[1] or device != kind[0]:  # most are of the kind of the one before
            kind = (device, dtype)
            group = groups.setdefault(kind, [])
        group.append(tensor)
    return groups


def multiply_(tensors: Sequence[Tensor], factor: Number) -> None:
    """Multiply donated tensors by one number, in place.

    >>> x = torch.ones(2)
    >>> multiply_([x], 0.5); x
    tensor([0.5000, 0.5000])
    """
    for (device, dtype), group in grouped(as_real(_entries(each)) for each in locals_of(tensors)).items():
        if device.type == "cpu" and dtype in HALF:  # the grouped kernel would round the factor first
            for each in group:
                each.mul_(_meeting(factor, each))
        else:
            torch._foreach_mul_(group, _meeting(factor, group[0]))


HALF = (torch.bfloat16, torch.float16)


def as_real(tensor: Tensor) -> Tensor:
    """Return a view of a complex tensor as pairs, which real factors scale: times 1+0j an infinity would become NaN.

    >>> as_real(torch.ones(1, dtype=torch.complex64))
    tensor([[1., 0.]])
    """
    return torch.view_as_real(tensor) if tensor.is_complex() and not tensor.is_conj() else tensor


def _entries(tensor: Tensor) -> Tensor:
    """Return what a sparse tensor stores, on the same storage, an index maybe twice; others as they are."""
    return tensor._values() if tensor.is_sparse else tensor  # noqa: SLF001 - `values()` asks for distinct indices


def summed(tensor: Tensor) -> Tensor:
    """Return the entries of a sparse tensor, those of one index summed, as a norm must see them; others as they are.

    >>> summed(torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (4,), check_invariants=True))
    tensor([5.])
    """
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def scaled(tensor: Tensor, factor: Number) -> Tensor:
    """Return one tensor times a number, rounded once, in the tensor's own dtype.

    >>> scaled(torch.ones(1, dtype=torch.bfloat16), torch.tensor(0.5, dtype=torch.float64)).dtype
    torch.bfloat16
    """
    if is_sharded(tensor):
        return cast("Any", tensor) * (factor.item() if isinstance(factor, Tensor) else factor)
    if tensor.is_sparse:
        whole = tensor.coalesce()
        values = scaled(whole.values(), factor)
        return torch.sparse_coo_tensor(whole.indices(), values, whole.shape, check_invariants=False, is_coalesced=True)
    if tensor.is_complex():
        return torch.view_as_complex(scaled(torch.view_as_real(tensor.resolve_conj()), factor))
    if not isinstance(factor, Tensor):
        return tensor * factor
    met = _meeting(factor, tensor)
    return (tensor.to(met.dtype) * met).to(tensor.dtype)


def _meeting(factor: Number, tensor: Tensor) -> Any:
    """Return a factor as it may meet a tensor, in float32 or in its dtype: cast to half precision it would lose digits.

    A double would do as well, but for 0-d tensors, which promote one another.
    """
    meeting = torch.promote_types(tensor.dtype, torch.float32)
    return factor.to(tensor.device, meeting) if isinstance(factor, Tensor) else factor


def copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy values into donated tensors, converting dtype and device.

    >>> x = torch.zeros(1)
    >>> copy_([x], [torch.ones(1, dtype=torch.bfloat16)]); x
    tensor([1.])
    """
    if targets:
        torch._foreach_copy_([local(each) for each in targets], [local(each) for each in sources])


def local(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process holds, on the same storage; others as they are.

    >>> x = torch.zeros(1)
    >>> local(x) is x
    True
    """
    return cast("Any", tensor).to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a sharded tensor gathered from all ranks, which all must ask for it; others as they are.

    >>> x = torch.zeros(1)
    >>> whole(x) is x
    True
    """
    return cast("Any", tensor).full_tensor() if is_sharded(tensor) else tensor


def locals_of(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return :func:`local` of each; the sequence itself where no tensor of this process can be sharded.

    >>> x = [torch.zeros(1)]
    >>> locals_of(x)[0] is x[0]
    True
    """
    return [local(each) for each in tensors] if "torch.distributed.tensor" in sys.modules else tensors


def is_sharded(tensor: Tensor) -> bool:
    """Tell whether a tensor is a DTensor, of which this process may hold a part only.

    >>> is_sharded(torch.zeros(1))
    False
    """
    # Whoever holds a DTensor has imported its module, which would cost everybody else half a second.
    sharded = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return sharded is not None and isinstance(tensor, sharded)


def lerped(start: Tensor, end: Tensor, weight: Number) -> Tensor:
    """Return ``start`` moved towards ``end`` by ``weight``, in the dtype of ``start``.

    >>> lerped(torch.zeros(1), torch.ones(1), 0.25)
    tensor([0.2500])
    """
    return torch.lerp(start, end.to(start.device, start.dtype), beside(weight, start))


def norms(tensors: Sequence[Tensor], order: float) -> list[Tensor]:
    """Return the norm of each tensor, in the order in which torch's own clipping takes them, on one device.

    >>> norms([torch.tensor([3.0, 4.0])], 2.0)
    [tensor(5.)]
    """
    groups = grouped(tensors)
    found = [norm for group in groups.values() for norm in torch._foreach_norm(group, order)]
    return found if len(groups) < 2 else [norm.to(found[0].device) for norm in found]  # noqa: PLR2004 - several


def norm(tensor: Tensor, order: float, **options: Any) -> Tensor:
    """Return the norm of one tensor: ``torch.linalg.vector_norm``, which torch leaves without a result type.

    >>> norm(torch.tensor([3.0, 4.0]), 2.0)
    tensor(5.)
    """
    result: Tensor = torch.linalg.vector_norm(tensor, order, **options)  # pyright: ignore[reportUnknownVariableType]
    return result  # pyright: ignore[reportUnknownVariableType]


def norms_one_by_one(tensors: Sequence[Tensor], order: float) -> list[Tensor]:
    """Return what :func:`norms` does, in a form that ``vmap`` and ``torch.compile`` trace.

    >>> norms_one_by_one([torch.tensor([3.0, 4.0])], 2.0)
    [tensor(5.)]
    """
    groups = grouped(tensors)
    found = [norm(tensor, order) for group in groups.values() for tensor in group]
    return found if len(groups) < 2 else [each.to(found[0].device) for each in found]  # noqa: PLR2004 - several
