"""The pure engine: the whole training step as one function that compiles, vmaps and differentiates."""

from functrain.pure.adam import adam, adamw
from functrain.pure.bridge import to_shell
from functrain.pure.check import check
from functrain.pure.compiled import compiled
from functrain.pure.engine import TrainStep, train_step
from functrain.pure.functional import Functional, buffers, functional, parameters
from functrain.pure.noise import Noise
from functrain.pure.over import grid, zipped
from functrain.pure.protocol import Optimizer
from functrain.pure.schedule import warmup_cosine
from functrain.pure.sgd import sgd
from functrain.pure.sweep import sweep
from functrain.pure.table import SweepTable

__all__ = [
    "Functional",
    "Noise",
    "Optimizer",
    "SweepTable",
    "TrainStep",
    "adam",
    "adamw",
    "buffers",
    "check",
    "compiled",
    "functional",
    "grid",
    "parameters",
    "sgd",
    "sweep",
    "to_shell",
    "train_step",
    "warmup_cosine",
    "zipped",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
