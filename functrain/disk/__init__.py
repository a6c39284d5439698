"""Checkpoints: everything that a run consists of, in a folder that appears whole or not at all.

The layout is described in :mod:`functrain.disk.layout`. Nothing here pickles, and loading executes nothing.
"""
