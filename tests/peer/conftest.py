"""Where the peer is not installed, nothing in this folder can be imported, helpers included."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("nvalchemi") else ["*.py"]
