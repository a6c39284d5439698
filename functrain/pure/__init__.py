"""The pure engine: the whole training step as one function that compiles, vmaps and differentiates."""

from functrain.pure.adam import adam as adam
from functrain.pure.adam import adamw as adamw
from functrain.pure.bridge import to_shell as to_shell
from functrain.pure.check import check as check
from functrain.pure.compiled import compiled as compiled
from functrain.pure.engine import TrainStep as TrainStep
from functrain.pure.engine import train_step as train_step
from functrain.pure.functional import Functional as Functional
from functrain.pure.functional import buffers as buffers
from functrain.pure.functional import functional as functional
from functrain.pure.functional import parameters as parameters
from functrain.pure.noise import Noise as Noise
from functrain.pure.over import grid as grid
from functrain.pure.over import zipped as zipped
from functrain.pure.protocol import Optimizer as Optimizer
from functrain.pure.schedule import warmup_cosine as warmup_cosine
from functrain.pure.sgd import sgd as sgd
from functrain.pure.sweep import sweep as sweep
from functrain.pure.table import SweepTable as SweepTable
