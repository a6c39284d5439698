"""The imperative shell: the only place that writes into real objects."""

from functrain.shell.batch_norm import reestimate_batch_norm
from functrain.shell.best import Best
from functrain.shell.fit import fit
from functrain.shell.history import History
from functrain.shell.shell import Shell
from functrain.shell.snapshot import Snapshot

__all__ = [
    "Best",
    "History",
    "Shell",
    "Snapshot",
    "fit",
    "reestimate_batch_norm",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
