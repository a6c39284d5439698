"""A figure that shows itself in notebooks."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure of matplotlib that a notebook shows, whether ``pyplot`` has been imported there or not.

    >>> Picture(figsize=(1, 1))._repr_png_()[1:4]
    b'PNG'
    """

    def _repr_png_(self) -> bytes:
        """Return the picture as notebooks ask for it."""
        drawn = BytesIO()
        self.savefig(drawn, format="png")
        return drawn.getvalue()
