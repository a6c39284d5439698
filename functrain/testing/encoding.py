"""States as JSON and back, bit by bit, tensors included."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from functrain._encoding import Decoder, Encoder
from functrain.testing.tensor_bytes import tensor_of_record, tensor_record


def encoded(value: Any, where: str = "state") -> Any:
    """Return a value as JSON can hold it.

    Args:
        value: a tree of tensors, numbers, texts, states, dtypes and stages.
        where: it is, as source text; for the error.

    Raises:
        ValueError: a value of another type, with its place.

    >>> encoded({"a": (1, float("inf"))})
    {'dict': [['a', {'tuple': [1, {'float': '7ff0000000000000'}]}]]}
    """
    return Encoder(_stored).encoded(value, where)


def _stored(tensor: Tensor, where: str) -> dict[str, Any]:
    try:
        return tensor_record(tensor)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def decoded(value: Any) -> Any:
    """Return what :func:`encoded` was given; builds tensors, numbers and containers, and imports nothing.

    Raises:
        ValueError: nothing that it returns; says what is wrong.

    >>> decoded({"dict": [["a", {"tuple": [1, {"float": "7ff0000000000000"}]}]]})
    {'a': (1, inf)}
    """
    return Decoder(tensor_of_record).decoded(value)
