"""The layout of a checkpoint on disk, version 1.

A checkpoint is a folder with two files. It appears under its name whole or not at all, and is never changed afterwards.

``tensors.safetensors``
    All tensors, as the safetensors package writes them; any reader of that format can open it. Names are places as
    source text, such as ``state.params["main"]["0.weight"]``. A dtype that safetensors lacks is stored as bytes,
    ``U8``; the manifest knows better.

``manifest.json``
    ``{"format": "functrain checkpoint, version 1", "sha256": ..., "content": ...}``, the digest being that of the
    content as ``json.dumps(content, sort_keys=True)`` writes it. The content:

    - ``kind``: ``"shell"`` or ``"pure"``;
    - ``serial``: above that of every checkpoint that was in the same folder when this one was written, so that the
      latest one has the highest;
    - ``clock``: ``step``, ``batch`` and ``epoch``;
    - ``written_by``: versions of functrain, torch and Python;
    - ``tensors``: ``[name, dtype, shape, crc32]`` for each tensor; the header of the other file must say the same;
    - ``parts``: trees, as :mod:`functrain._encoding` writes them. ``{"tensor": 3}`` stands for the fourth tensor.

The parts of a shell are those of ``Shell.state_dict()``, ``latest`` and ``data``; those of a pure state are ``state``,
``random``, ``pipeline`` and ``data``. ``pipeline`` is the configuration of each hook by name, ``data`` the position in
the data, ``latest`` what the latest micro-batch and validation left in the state.

The manifest names no files, so no name in it can lead out of the folder. Links and anything that is no regular file are
refused. Sizes are compared before memory is taken. Nothing is imported, called or unpickled. A later version of this
layout has a higher number in ``format``, and reads this one.
"""

from __future__ import annotations

VERSION = 1
FORMAT = "functrain checkpoint, version "
"""What a manifest begins with, before the number of its version."""
MANIFEST, TENSORS = "manifest.json", "tensors.safetensors"
MOST_BYTES, MOST_NODES, MOST_DIMENSIONS = 64 << 20, 2_000_000, 64
"""Limits of a manifest: bytes; commas and brackets, which bound what parsing costs; dimensions of a tensor."""
