"""Look instead of read: states, differences, pipelines and what they did, as text and, in a notebook, as HTML.

No view raises or runs a script. Showing asks no device for a value unless ``stats=True`` says so; reading a trace does.
"""

from functrain.show.comparison import Replay
from functrain.show.diff import diff
from functrain.show.moment import Moment
from functrain.show.node import Grid, Node, Panels
from functrain.show.pipeline import pipeline
from functrain.show.replay import replay
from functrain.show.state import state
from functrain.show.timeline import Trace
from functrain.show.tracing import TracedPipeline, trace
from functrain.show.view import View

__all__ = [
    "Grid",
    "Moment",
    "Node",
    "Panels",
    "Replay",
    "Trace",
    "TracedPipeline",
    "View",
    "diff",
    "pipeline",
    "replay",
    "state",
    "trace",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
