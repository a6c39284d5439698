"""Look instead of read: states, differences, pipelines and what they did, as text and, in a notebook, as HTML.

No view raises or runs a script. Showing asks no device for a value unless ``stats=True`` says so; reading a trace does.
"""

from functrain.show.diff import diff as diff
from functrain.show.node import Grid as Grid
from functrain.show.node import Node as Node
from functrain.show.pipeline import pipeline as pipeline
from functrain.show.state import state as state
from functrain.show.timeline import Trace as Trace
from functrain.show.tracing import TracedPipeline as TracedPipeline
from functrain.show.tracing import trace as trace
from functrain.show.view import View as View
