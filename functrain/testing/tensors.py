"""Small dense CPU tensors, drawn element by element, so that a failure shrinks to something like [0., 50.]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from functrain.testing.checking import check_options, strategy

Shape = tuple[int, ...]
SHAPES: tuple[Shape, ...] = ((), (1,), (3,), (2, 2), (2, 1, 2), (0,))
REAL = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
COMPLEX = (*REAL, torch.complex64)
ORDINARY = st.floats(-8, 8, width=16)
AWKWARD = st.sampled_from([0.0, -0.0, 1e-40, 6e4, 3e38, -3e38, float("inf"), float("-inf"), float("nan")])


@strategy(check_options)
def tensors(
    draw: st.DrawFn,
    *,
    shapes: Sequence[Shape] = SHAPES,
    dtypes: Sequence[torch.dtype] = REAL,
    elements: st.SearchStrategy[float] = ORDINARY,
) -> Tensor:
    """Draw a small dense tensor.

    Args:
        draw: given by Hypothesis.
        shapes: one of them is drawn.
        dtypes: one of them is drawn; floating or complex.
        elements: of the real part; the imaginary part is the same in another order.

    Raises:
        InvalidArgument: no shapes, no dtypes, or elements that are no strategy.

    >>> tensors(shapes=[(2,)], dtypes=[torch.float32])
    tensors(shapes=[(2,)], dtypes=[torch.float32])
    >>> tensors(shapes=[])
    Traceback (most recent call last):
    ...
    hypothesis.errors.InvalidArgument: shapes=[] must be a non-empty sequence of shapes, which are tuples of ints
    """
    return draw(tensor_of(draw(st.sampled_from(shapes)), draw(st.sampled_from(dtypes)), elements))


@st.composite
def tensor_of(draw: st.DrawFn, shape: Shape, dtype: torch.dtype, elements: st.SearchStrategy[float]) -> Tensor:
    """Draw a tensor of one kind."""
    count = torch.Size(shape).numel()
    real = torch.tensor(draw(st.lists(elements, min_size=count, max_size=count))).reshape(shape)
    if not dtype.is_complex:
        return real.to(dtype)
    return torch.complex(real.float(), real.float().flip(0) if real.ndim else real.float()).to(dtype)


@strategy(check_options)
def losses(draw: st.DrawFn, *, elements: st.SearchStrategy[float] = ORDINARY | AWKWARD) -> Tensor:
    """Draw a loss: a 0-d float32 tensor, now and then infinite or NaN.

    >>> losses()
    losses()
    """
    return draw(tensor_of((), torch.float32, elements))
