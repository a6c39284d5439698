"""Checkpoints: everything that a run consists of, in a folder that appears whole or not at all.

The layout is described in :mod:`functrain.disk.layout`. Nothing here pickles, and loading executes nothing.
"""

from functrain.disk.average_file import save_average
from functrain.disk.background import Background
from functrain.disk.checkpoint import Checkpoint
from functrain.disk.conflicts import Report
from functrain.disk.rotation import latest, rotate
from functrain.disk.saving import save
from functrain.disk.stored import Stored, load

__all__ = [
    "Background",
    "Checkpoint",
    "Report",
    "Stored",
    "latest",
    "load",
    "rotate",
    "save",
    "save_average",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
