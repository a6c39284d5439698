"""The contexts that a run has to leave as it found them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from functrain.testing.differences import unlike

DEVICES = ("cpu", "cuda")


class Contexts:
    """How autocast, gradient mode and inference mode are at one moment.

    >>> contexts = Contexts()
    >>> with torch.no_grad():
    ...     list(contexts.differences())
    ['contexts["gradients"]: False != True']
    """

    def __init__(self) -> None:
        """Look at them."""
        self._found = _now()

    def differences(self) -> Iterator[str]:
        """Yield those that are not as they were."""
        yield from unlike(_now(), self._found, "contexts")

    def close(self) -> None:
        """Leave autocast and gradient mode as they were, so that what comes next is not blamed for a fault of this."""
        torch.set_grad_enabled(bool(self._found["gradients"]))
        for device in DEVICES:
            torch.set_autocast_enabled(device, bool(self._found[f"autocast on {device}"]))
        if _nesting() > self._found["autocasts"]:  # their cache of weights is cleared by the outermost only
            while _nesting() > self._found["autocasts"]:
                torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()


def _now() -> dict[str, bool | int]:
    autocasts = {f"autocast on {device}": torch.is_autocast_enabled(device) for device in DEVICES}
    modes = {"gradients": torch.is_grad_enabled(), "inference mode": torch.is_inference_mode_enabled()}
    return {**autocasts, **modes, "autocasts": _nesting()}


def _nesting() -> int:
    """Return how many autocasts are open; torch tells only when it changes."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
