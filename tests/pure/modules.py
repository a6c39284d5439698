"""Modules with everything a module may have: buffers, dropout, ties, wrappers, attributes set in the forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def normed(dtype: torch.dtype = torch.float64, p: float = 0.0) -> nn.Module:
    """Return a perceptron with batch normalization and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(p), nn.Linear(5, 1)).to(dtype)


class Tied(nn.Module):
    """One weight under two names, and one part at two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(3, 3, dtype=torch.float64)
        self.again = self.inner
        self.outer = nn.Linear(3, 3, dtype=torch.float64)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        """Use the weight three times."""
        return self.outer(self.again(self.inner(x).tanh()).tanh())


class Leaving(nn.Module):
    """A module whose forward leaves traces: an attribute, a count, a list, a replaced buffer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1, dtype=torch.float64)
        self.seen: list[Any] = []
        self.count, self.last = 0, None
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        self.count += 1
        self.last = out = self.layer(x)
        self.seen.append(out)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return out


class Dropping(nn.Module):
    """A module that drops by the function, not by a part."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Drop half."""
        return F.dropout(self.layer(x), 0.5, training=self.training)


def content(module: nn.Module) -> dict[str, Any]:
    """Return all that a module holds, tensors as copies with their addresses."""
    found: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        for name, held in vars(part).items():
            found[f"{prefix}.{name}"] = dict(held) if isinstance(held, dict) else held
    for name, leaf in module.state_dict(keep_vars=True).items():
        found[name] = (leaf.detach().clone().tolist(), leaf.data_ptr(), leaf.grad, id(leaf))
    return found
