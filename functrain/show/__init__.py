"""Look instead of read: states, differences and pipelines, as text in a terminal and as HTML in a notebook.

Nothing here raises, runs a script, or asks a device for a value, unless ``stats=True`` says so.
"""

from functrain.show.diff import diff as diff
from functrain.show.node import Grid as Grid
from functrain.show.node import Node as Node
from functrain.show.pipeline import pipeline as pipeline
from functrain.show.state import state as state
from functrain.show.view import View as View
