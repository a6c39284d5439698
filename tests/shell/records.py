"""Everything a run consists of, flat and comparable bitwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from functrain import Shell


def flat(tree: Any) -> dict[str, Any]:
    """Return the leaves of nested containers under their paths."""
    return {_pytree.keystr(path): leaf for path, leaf in _pytree.tree_flatten_with_path(tree)[0]}


def record(shell: Shell) -> dict[str, Any]:
    """Return copies of all that a resume needs, and of what the modules themselves hold."""
    modules = shell._driver.applier.models.modules
    held = {
        key: {name: leaf.detach().clone() for name, leaf in [*each.named_parameters(), *each.named_buffers()]}
        for key, each in modules.items()
    }
    gradients = {
        key: {name: leaf.grad.clone() for name, leaf in each.named_parameters() if leaf.grad is not None}
        for key, each in modules.items()
    }
    return flat({"saved": shell.state_dict(), "modules": held, "gradients": gradients})


def alike(one: Any, two: Any) -> bool:
    """Compare two leaves bitwise, so that NaN equals NaN and 0 is not -0."""
    if not (isinstance(one, Tensor) and isinstance(two, Tensor)):
        return repr(one) == repr(two)
    return one.dtype == two.dtype and one.shape == two.shape and torch.equal(raw(one), raw(two))


def raw(leaf: Tensor) -> Tensor:
    """Return the bytes of a tensor."""
    return leaf.detach().contiguous().flatten().view(torch.uint8)


def differences(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Return the paths under which two records differ."""
    return [path for path in {**one, **two} if not alike(one.get(path, "nothing"), two.get(path, "nothing"))]
