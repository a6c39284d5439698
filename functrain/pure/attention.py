"""Attention with dropout as a formula, since torch's kernel draws by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it


def attention(  # noqa: PLR0913, PLR0917 - torch's
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT002 - torch's
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT002 - torch's
    *,
    drop: Callable[[Tensor, float], Tensor],
) -> Tensor:
    """Return what ``F.scaled_dot_product_attention`` returns, its weights dropped by ``drop(weights, p)``.

    >>> x = torch.eye(2)
    >>> attention(x, x, x, dropout_p=0.5, drop=lambda weights, p: torch.zeros_like(weights))
    tensor([[0., 0.],
            [0., 0.]])
    """
    if dropout_p == 0.0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return drop(_masked(scores, attn_mask).softmax(-1), dropout_p) @ value


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return scores, minus infinity where a mask of bools says no, plus a mask of numbers."""
    if mask is None:
        return scores
    return scores.where(mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
