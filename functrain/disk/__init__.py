"""Checkpoints: everything that a run consists of, in a folder that appears whole or not at all.

The layout is described in :mod:`functrain.disk.layout`. Nothing here pickles, and loading executes nothing.
"""

from functrain.disk.average_file import save_average as save_average
from functrain.disk.background import Background as Background
from functrain.disk.checkpoint import Checkpoint as Checkpoint
from functrain.disk.conflicts import Report as Report
from functrain.disk.rotation import latest as latest
from functrain.disk.rotation import rotate as rotate
from functrain.disk.saving import save as save
from functrain.disk.stored import Stored as Stored
from functrain.disk.stored import load as load
