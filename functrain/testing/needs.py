"""What the laws need besides functrain; imported first, so that the error says what to install."""

from __future__ import annotations

try:
    from hypothesis import version
except ImportError as error:
    msg = "functrain.testing draws what it checks with Hypothesis, which is not there; install functrain[testing]"
    raise ImportError(msg, name="hypothesis") from error

HYPOTHESIS = str(version.__version__)  # pyright: ignore[reportUnknownArgumentType]
"""Which one there is: a blob of ``reproduce_failure`` needs the same."""
